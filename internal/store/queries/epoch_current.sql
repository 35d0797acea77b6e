-- queries/epoch_current.sql
-- Keeps an epoch from being condemned until the transaction ends.
-- $1 epoch
-- Returns a row if it is the current one and Redis has it.
SELECT true FROM redis_epoch WHERE epoch = $1 AND written FOR SHARE
