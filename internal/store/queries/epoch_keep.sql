-- Renews the lease of a rebuild and stores its progress.
-- $1 epoch  $2 rebuilder  $3 how long it excludes others (ms, 0 = no longer)  $4 progress
-- Affects no row when another rebuild has begun.
UPDATE redis_epoch
SET leased_until = clock_timestamp() + $3 * interval '1 millisecond', progress = $4
WHERE epoch = $1 AND rebuilder = $2 AND NOT written
