#!lua
-- Places a hold with the minimum of work: checks that the request is new and that every night has
-- capacity; writes the counts, the stored outcome, the hold with its deadline, and its entry in due.
--
-- KEYS 1 request  2 hold  3 counts (hash)  4 due (zset)
-- ARGV 1 id  2 quantity  3 capacity  4 ttl_ms  5 deadline_ms  6 record, then the nights
-- Returns 1, or 0 when it has placed no hold.
if redis.call('GET', KEYS[1]) then return 0 end
local quantity, capacity = tonumber(ARGV[2]), tonumber(ARGV[3])
local changes = {}
for i, held in ipairs(redis.call('HMGET', KEYS[3], unpack(ARGV, 7))) do
  local count = (tonumber(held or '0')) + quantity
  if count > capacity then return 0 end
  changes[2 * i - 1] = ARGV[6 + i]
  changes[2 * i] = count
end
redis.call('HSET', KEYS[3], unpack(changes))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])
redis.call('SET', KEYS[2], ARGV[6], 'PX', ARGV[4])
redis.call('ZADD', KEYS[4], ARGV[5], ARGV[1])
return 1
