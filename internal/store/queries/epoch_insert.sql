-- queries/epoch_insert.sql
-- Makes the first epoch, unless there is one.
-- $1 epoch  $2 partitions
INSERT INTO redis_epoch (epoch, partitions) VALUES ($1, $2) ON CONFLICT DO NOTHING
