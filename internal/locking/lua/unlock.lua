-- Releases an acquisition, key by key: one that was lost does not keep the others locked. A key
-- is free when its last acquisition was released. Repeating it changes nothing.
--
-- KEYS  1 locks (hash)
-- ARGV  1 fence, "" = whichever: it is not known whether the acquisition was ever granted
--       2 id of the acquisition
--       3 scope  what was freed is told on the channel <scope>released; see lock.lua for the others
--       4 leave_queue  "1" = it may have queued: leave_queue the queues too
--       5 gone_ms  how long to refuse attempts of the acquisition that are still on their way, "0" =
--         there are none; see lock.lua
--       then the keys that were locked
-- Returns ok n ...  the numbers of the keys that were not the acquisition's any more

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
    freed = keys -- whoever was behind it may go on
    for _, key in ipairs(keys) do redis.call('ZREM', scope .. 'queue:' .. key, id) end
  end
  -- Who may not publish still unlocks: waiters then go on by their own clocks.
  if #freed > 0 and redis.call('EXISTS', scope .. 'waited_for') == 1 then
    redis.pcall('SPUBLISH', scope .. 'released', table.concat(freed, ' '))
  end
  return reply
end
