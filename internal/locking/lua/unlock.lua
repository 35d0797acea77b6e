-- Releases each key of an acquisition that the acquisition still holds. A key is free when its last
-- acquisition is released. A repeated call changes nothing.
--
-- KEYS  1 locks (hash)
-- ARGV  1 fence; "" for any, when it is not known whether the lock was granted
--       2 id of the acquisition
--       3 scope  prefix of the channel <scope>released, on which the freed keys are published, and of the
--         keys that waiters share
--       4 "1" when the acquisition may be in queues and leaves them
--       5 gone_ms  time for which attempts of the acquisition that arrive late are refused, "0" for none
--       then the keys that were locked
-- Returns ok n ...  the numbers of the keys that the acquisition no longer held

local function run(KEYS, ARGV)
  local LOCKS = KEYS[1]
  local fence, id, scope = ARGV[1] ~= '' and ARGV[1] or ANY, ARGV[2], ARGV[3]
  local keys = {unpack(ARGV, 6)}

  if ARGV[5] ~= '0' then redis.call('SET', gone_key(scope, id), '', 'PX', ARGV[5]) end

  local freed, over, reply = {}, {}, {'ok'}
  for i, field in ipairs(redis.call('HMGET', LOCKS, unpack(keys))) do
    local value, until_ms = live_value(field)
    local rest, is_own
    if value then rest, is_own = remove_acquisition(value, fence, id) end
    if not is_own then
      reply[#reply + 1] = i
      if field and not value then over[#over + 1] = keys[i] end
    elseif string.find(rest, ':', 1, true) then
      redis.call('HSET', LOCKS, keys[i], rest .. ' ' .. int(until_ms))
    else
      freed[#freed + 1] = keys[i]
    end
  end
  if #freed > 0 then redis.call('HDEL', LOCKS, unpack(freed)) end
  if #over > 0 then redis.call('HDEL', LOCKS, unpack(over)) end

  if ARGV[4] == '1' and leave_queue(scope, id) then
    freed = keys -- a waiter behind it may continue
    for _, key in ipairs(keys) do redis.call('ZREM', scope .. 'queue:' .. key, id) end
  end
  -- A user without the permission to publish can still unlock. The waiters then use their own
  -- clocks.
  if #freed > 0 and redis.call('EXISTS', scope .. 'waited_for') == 1 then
    redis.pcall('SPUBLISH', scope .. 'released', table.concat(freed, ' '))
  end
  return reply
end
