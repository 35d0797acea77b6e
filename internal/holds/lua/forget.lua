-- Forgets departed holds whose hold.expired is stored: they become tombstones.
--
-- ARGV  4 memory_ms  then the ids
-- Returns ok

local function run(KEYS, ARGV)
  if not enter(KEYS, ARGV) then return {'lost'} end
  local over, buried = now + ARGV[4], {}
  for i = 5, #ARGV do
    if redis.call('ZREM', prefix .. 'departing', ARGV[i]) == 1 then
      buried[#buried + 1] = over
      buried[#buried + 1] = ARGV[i]
    end
  end
  if #buried > 0 then
    redis.call('ZADD', prefix .. 'tombstones', unpack(buried))
    attend(over)
  end
  return {'ok'}
end
