-- queries/epoch_keep.sql
-- Goes on filling Redis under an epoch, and says how far it is.
-- $1 epoch  $2 rebuilder  $3 for how long nobody else may begin (ms, 0 = somebody else may)  $4 progress
-- Affects no row when somebody else has begun another.
UPDATE redis_epoch
SET leased_until = clock_timestamp() + $3 * interval '1 millisecond', progress = $4
WHERE epoch = $1 AND rebuilder = $2 AND NOT written
