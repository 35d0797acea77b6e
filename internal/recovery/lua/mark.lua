-- Marks a partition as one that is being filled: from now on every other script refuses. It has no
-- prelude: the epoch is what it writes. Its KEYS are only epoch.
--
-- ARGV  1 mark        what the epoch becomes
--       2 lineage     what the epochs of the database begin with
--       3 generation  the number of the one under which the partition is filled
--       4 force       "1" = whatever there is
-- Returns ok, or
--   newer    somebody has begun later: nothing was written
--   foreign  there is what another database has written: nothing was written
-- What is no string is nobody's.

local found = redis.pcall('GET', KEYS[1])
if type(found) == 'string' and ARGV[4] ~= '1' then
  local lineage, generation = string.match(found, '^([^/ ]+)/?(%d*)')
  if lineage ~= ARGV[2] then return {'foreign'} end
  if (tonumber(generation) or 1) > tonumber(ARGV[3]) then return {'newer'} end
end
redis.call('SET', KEYS[1], ARGV[1])
return {'ok'}
