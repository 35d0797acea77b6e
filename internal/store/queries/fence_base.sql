-- The next base of fencing tokens. A sequence never returns a number twice, whatever becomes of
-- the transaction.
SELECT nextval('lock_fence_bases')
