-- Marks an epoch as complete: a server has all of it. $3 must be the running rebuild, "" = none.
-- $1 epoch  $2 server  $3 rebuilder
-- Affects no row when the epoch is not the current one, or is complete already.
UPDATE redis_epoch
SET written = true, server = $2, lost = NULL, lost_why = NULL, rebuilder = NULL, leased_until = NULL, progress = NULL
WHERE epoch = $1 AND NOT written AND coalesce(rebuilder, '') = $3
