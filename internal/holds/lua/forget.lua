-- Makes tombstones of expired holds whose hold.expired is stored.
--
-- ARGV  4 memory_ms  then the ids
-- Returns ok

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local over, tombstones = now + ARGV[4], {}
  for i = 5, #ARGV do
    if redis.call('ZREM', prefix .. 'departing', ARGV[i]) == 1 then
      tombstones[#tombstones + 1] = over
      tombstones[#tombstones + 1] = ARGV[i]
    end
  end
  if #tombstones > 0 then
    redis.call('ZADD', prefix .. 'tombstones', unpack(tombstones))
    schedule(over)
  end
  return {'ok'}
end
