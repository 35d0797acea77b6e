-- Forgets departed holds whose hold.expired is stored: they become tombstones.
--
-- ARGV  4 memory_ms  then the ids
-- Returns ok

local function run(KEYS, ARGV)
  if not enter(KEYS, ARGV) then return {'lost'} end
  local memory_ms = tonumber(ARGV[4])
  for i = 5, #ARGV do
    if redis.call('ZREM', prefix .. 'departing', ARGV[i]) == 1 then bury(ARGV[i], memory_ms) end
  end
  return {'ok'}
end
