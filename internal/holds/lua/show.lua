-- Reads one hold.
--
-- ARGV  4 id
-- Returns ok now line ("" = not remembered)

return {'ok', tostring(now), redis.call('HGET', RECORDS, ARGV[4]) or ''}
