-- Inserts the first epoch, unless one exists.
-- $1 epoch  $2 partitions
INSERT INTO redis_epoch (epoch, partitions) VALUES ($1, $2) ON CONFLICT DO NOTHING
