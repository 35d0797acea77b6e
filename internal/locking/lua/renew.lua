-- Restarts the lease of each key of an acquisition.
--
-- KEYS  1 locks (hash)
-- ARGV  1 fence  2 id of the acquisition  3 lease_ms  then the keys that were locked
-- Returns ok n ...  the numbers of the keys that the acquisition no longer held

local function run(KEYS, ARGV)
  local LOCKS, keys = KEYS[1], {unpack(ARGV, 4)}
  local reply, changes = {'ok'}, {}
  for i, field in ipairs(redis.call('HMGET', LOCKS, unpack(keys))) do
    local value, until_ms = live_value(field)
    if value and select(2, remove_acquisition(value, ARGV[1], ARGV[2])) then
      changes[#changes + 1] = keys[i]
      changes[#changes + 1] = value .. ' ' .. int(math.max(clock() + ARGV[3], until_ms))
    else
      reply[#reply + 1] = i
    end
  end
  if #changes > 0 then
    redis.call('HSET', LOCKS, unpack(changes))
    extend_hash_ttl(LOCKS, tonumber(ARGV[3]))
  end
  return reply
end
