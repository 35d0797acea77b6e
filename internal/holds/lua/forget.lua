-- Makes tombstones of expired holds whose hold.expired is stored.
--
-- ARGV  4 memory_ms  then the ids
-- Returns ok id ...: those that were not forgotten before

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  redis.call('ZCARD', prefix .. 'tombstones') -- fails before anything is written if it is not a sorted set
  local over, tombstones, reply = now + ARGV[4], {}, {'ok'}
  for i = 5, #ARGV do
    if redis.call('ZREM', prefix .. 'departing', ARGV[i]) == 1 then
      tombstones[#tombstones + 1] = over
      tombstones[#tombstones + 1] = ARGV[i]
      reply[#reply + 1] = ARGV[i]
    end
  end
  if #tombstones > 0 then
    redis.call('ZADD', prefix .. 'tombstones', unpack(tombstones))
    schedule(over)
  end
  return reply
end
