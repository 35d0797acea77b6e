-- Marks a partition as one that is being rebuilt or caught up: from now on every other script refuses. It does
-- not begin with the prelude, because it writes the epoch that the prelude compares. KEYS are epoch and applied.
--
-- ARGV  1 mark        the new value of the epoch
--       2 lineage     of the epochs of this database: what their names begin with
--       3 generation  number of the epoch under which the partition is rebuilt
--       4 force       "1" to replace any value, as long as it is the one that the caller has read
--       5 keep        "1" to keep the marker: the data stays what it is. Otherwise applied is removed, because
--                     the data is about to change.
--       6 before      the value that the caller has read, only with force
-- Returns ok epoch marker: the values before, "" when missing; or
--   newer    a later rebuild has begun: nothing was written
--   foreign  another database has written the epoch: nothing was written
-- A value that is not a string counts as missing.

local found, marker = redis.pcall('GET', KEYS[1]), redis.pcall('GET', KEYS[2])
if type(found) ~= 'string' then found = '' end
if type(marker) ~= 'string' then marker = '' end
if ARGV[4] == '1' then
  if found ~= ARGV[6] then return {'newer'} end
elseif found ~= '' then
  local lineage, generation = string.match(found, '^([^/ ]+)/?(%d*)')
  if lineage ~= ARGV[2] then return {'foreign'} end
  if (tonumber(generation) or 1) > tonumber(ARGV[3]) then return {'newer'} end
end
redis.call('SET', KEYS[1], ARGV[1])
if ARGV[5] ~= '1' then redis.call('DEL', KEYS[2]) end
return {'ok', found, marker}
