-- Begins the next epoch for a rebuild of Redis, unless another rebuild is running.
-- $1 rebuilder  $2 how long it excludes others (ms)
-- Returns epoch, no row when another rebuild is running.
UPDATE redis_epoch
SET generation = generation + 1, epoch = split_part(epoch, '/', 1) || '/' || (generation + 1),
    rebuilder = $1, leased_until = clock_timestamp() + $2 * interval '1 millisecond', progress = NULL
WHERE NOT written AND (leased_until IS NULL OR leased_until <= clock_timestamp())
RETURNING epoch
