-- Releases an acquisition, key by key: one that was lost does not keep the others locked. A key
-- is free when its last acquisition was released. Repeating it changes nothing.
--
-- KEYS  the keys that were locked
-- ARGV  1 fence, "" = whichever: it is not known whether the acquisition was ever granted
--       2 id of the acquisition
--       3 scope  what was freed is told on the channel <scope>released; see lock.lua for the others
--       4 leave  "1" = it may have queued: leave the queues too
-- Returns ok n ...  the numbers of the KEYS that were not the acquisition's any more

local fence, id, scope = ARGV[1] ~= '' and ARGV[1] or ANY, ARGV[2], ARGV[3]

local freed, reply = {}, {'ok'}
for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  local rest, mine
  if value then rest, mine = without(value, fence, id) end
  if not mine then
    reply[#reply + 1] = i
  elseif string.find(rest, ':', 1, true) then
    redis.call('SET', KEYS[i], rest, 'KEEPTTL')
  else
    freed[#freed + 1] = KEYS[i]
  end
end
if #freed > 0 then redis.call('DEL', unpack(freed)) end

if ARGV[4] == '1' and leave(scope, id) then
  freed = KEYS -- whoever was behind it may go on
  for _, key in ipairs(KEYS) do redis.call('ZREM', scope .. 'queue:' .. key, id) end
end
-- Who may not publish still unlocks: waiters then go on by their own clocks.
if #freed > 0 then redis.pcall('SPUBLISH', scope .. 'released', table.concat(freed, ' ')) end
return reply
