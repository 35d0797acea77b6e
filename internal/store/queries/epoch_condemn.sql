-- queries/epoch_condemn.sql
-- Notes that Redis has not all that was written under an epoch. It waits for the payments that are
-- being decided under it; none is afterwards.
-- $1 epoch  $2 why
-- Affects no row when somebody else has done so.
UPDATE redis_epoch SET written = false, lost = epoch, lost_why = $2, rebuilder = NULL, leased_until = NULL, progress = NULL
WHERE epoch = $1 AND written
