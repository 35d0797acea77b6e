-- Prevents an epoch from being invalidated until the transaction ends.
-- $1 epoch
-- Returns a row if it is the current epoch and Redis has it.
SELECT true FROM redis_epoch WHERE epoch = $1 AND written FOR SHARE
