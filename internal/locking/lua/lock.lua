-- Locks a set of keys, all of them or none.
--
-- KEYS  1 fence (counts the locks)  then the keys to be locked, sorted
-- ARGV  1 owner (without a colon)  2 lease_ms
-- Returns ok token             the value that every key now has: <owner>:<fencing token>
--         blocked n lease_ms   KEYS[n] belongs to another lock, for so long at most

for i, value in ipairs(redis.call('MGET', unpack(KEYS, 2))) do
  if value then
    return {'blocked', i + 1, redis.call('PTTL', KEYS[i + 1])}
  end
end
local token = ARGV[1] .. ':' .. redis.call('INCR', KEYS[1])
for i = 2, #KEYS do
  redis.call('SET', KEYS[i], token, 'PX', ARGV[2])
end
return {'ok', token}
