-- queries/epoch_written.sql
-- Notes that a server has the epoch. $3, unless it is empty, must be who fills it.
-- $1 epoch  $2 server  $3 rebuilder
-- Affects no row when the epoch is not this one any more, or was written before.
UPDATE redis_epoch
SET written = true, server = $2, lost = NULL, lost_why = NULL, rebuilder = NULL, leased_until = NULL, progress = NULL
WHERE epoch = $1 AND NOT written AND coalesce(rebuilder, '') = $3
