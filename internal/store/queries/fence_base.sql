-- Returns the next base of fencing tokens. A sequence never returns a number twice, even if the
-- transaction is rolled back.
SELECT nextval('lock_fence_bases')
