-- Counts the holds of a resource that can expire.
--
-- Returns ok count

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  return {'ok', tostring(redis.call('ZCARD', DUE))}
end
