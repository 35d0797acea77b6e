-- Marks the epoch as invalid: Redis lacks data that was written under it. Waits for the payments
-- that are being decided under it; no payment is decided under it afterwards.
-- $1 epoch  $2 why
-- Affects no row when it was marked before.
UPDATE redis_epoch SET written = false, lost = epoch, lost_why = $2, rebuilder = NULL, leased_until = NULL, progress = NULL
WHERE epoch = $1 AND written
