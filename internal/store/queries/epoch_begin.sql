-- queries/epoch_begin.sql
-- Begins the next epoch, for one who fills Redis under it, unless another is at it.
-- $1 rebuilder  $2 for how long nobody else may begin (ms)
-- Returns epoch, if it was begun.
UPDATE redis_epoch
SET generation = generation + 1, epoch = split_part(epoch, '/', 1) || '/' || (generation + 1),
    rebuilder = $1, leased_until = clock_timestamp() + $2 * interval '1 millisecond', progress = NULL
WHERE NOT written AND (leased_until IS NULL OR leased_until <= clock_timestamp())
RETURNING epoch
