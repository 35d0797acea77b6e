-- Reads the clock and then the rev of some resources, in a Redis Cluster of one partition.
--
-- KEYS  the rev of each resource
-- Returns ok now_ms rev ...: a missing rev is 0

local function run(KEYS)
  local time = redis.call('TIME')
  local reply = {'ok', int(time[1] * 1000 + math.floor(time[2] / 1000))}
  for i, rev in ipairs(redis.call('MGET', unpack(KEYS))) do reply[i + 2] = rev or '0' end
  return reply
end
