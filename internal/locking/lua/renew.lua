-- Makes the lease of an acquisition begin anew, key by key.
--
-- KEYS  the keys that were locked
-- ARGV  1 fence  2 id of the acquisition  3 lease_ms
-- Returns ok n ...  the numbers of the KEYS that were not the acquisition's any more

local reply = {'ok'}
for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  if value and select(2, without(value, ARGV[1], ARGV[2])) then
    redis.call('PEXPIRE', KEYS[i], math.max(tonumber(ARGV[3]), redis.call('PTTL', KEYS[i])))
  else
    reply[#reply + 1] = i
  end
end
return reply
