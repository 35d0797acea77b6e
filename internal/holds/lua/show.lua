-- Reads one hold.
--
-- ARGV  4 id
-- Returns ok now line. line is the hold's record, "" when the hold is not remembered.

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  return {'ok', tostring(now), redis.call('HGET', RECORDS, ARGV[4]) or ''}
end
