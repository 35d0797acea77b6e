-- Inserts the first epoch, unless one exists. A trigger inserts it for each partition.
-- $1 epoch  $2 partitions
INSERT INTO redis_epoch (epoch, partitions) VALUES ($1, $2) ON CONFLICT DO NOTHING
