-- Counts a comparison of Postgres in a partition. A value that is no number counts as missing.
--
-- KEYS  1 compared
-- Returns ok

if type(redis.pcall('INCR', KEYS[1])) ~= 'number' then redis.call('SET', KEYS[1], '1') end
return {'ok'}
