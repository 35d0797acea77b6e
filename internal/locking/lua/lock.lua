-- Locks a set of keys, all of them or none.
--
-- KEYS  1 fence (counts the locks)  then the keys to be locked, distinct
-- ARGV  1 owner (without a colon), "-" = nobody, who never locks again
--       2 id of the acquisition (letters and digits): the same at each attempt and at each repeat
--         of an attempt whose reply was lost
--       3 lease_ms
--       4 scope    begins the keys of what waiters share: <scope>waiting, <scope>queue:<key>
--       5 wait_ms  "" = there is no queue, else nobody passes who has queued before; queue for so long
--                  if blocked, "0" = not at all
--       6 fence_min  the lowest base there can be
--       7 mark       never used before: marks a fence that is lost
--       8 base  9 drawn_for: see no_fence, "" at first
-- Returns ok fence               every key now has the acquisition <fence>.<id>
--         blocked n lease_ms     KEYS[n] belongs to another owner, for so long at most
--         behind n wait_ms id    KEYS[n] is free, but the acquisition id has waited longer for it,
--                                and will wait for so long at most
--         no_fence mark          Redis has lost the fence, or never had one, and it is marked: draw a
--                                base above every fence there ever was, and call again with both. If
--                                the fence was lost once more since, the base is too old and the mark gone.

local owner, id, lease, scope, wait = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local n = #KEYS - 1
local values = redis.call('MGET', unpack(KEYS, 2))

local blocked, reentrant
for i = 1, n do
  local value = values[i]
  if value then
    local _, mine = without(value, ANY, id)
    if mine or owner ~= '-' and string.match(value, '^[^:]*') == owner then
      reentrant = true
    else
      blocked = i
      break
    end
  end
end
if blocked and not wait then
  return {'blocked', blocked + 1, redis.call('PTTL', KEYS[blocked + 1])}
end

-- The queue: each key has a zset of those who wait for it, by ticket, and all keys of a scope
-- share the hash id -> "ticket deadline_ms", with the last ticket under "#". Tickets are drawn and
-- queued for in one step, so whoever has the lowest ticket is first for all its keys: there is
-- always one who can go on. Who waits past its deadline is dead, and is removed by the next who
-- finds it in front.
local waiting, queue_prefix = scope .. 'waiting', scope .. 'queue:'
if wait and (blocked or not reentrant) then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local behind
  if not blocked then
    for i = 1, n do
      local queue = queue_prefix .. KEYS[i + 1]
      local head = redis.call('ZRANGE', queue, 0, 0)[1]
      while head and head ~= id do
        local entry = redis.call('HGET', waiting, head)
        local deadline = entry and tonumber(string.match(entry, ' (%d+)$'))
        if deadline and deadline > now then
          behind = {'behind', i + 1, deadline - now, head}
          break
        end
        redis.call('ZREM', queue, head)
        leave(scope, head)
        head = redis.call('ZRANGE', queue, 0, 0)[1]
      end
      if behind then break end
    end
  end
  if blocked or behind then
    local answer = behind or {'blocked', blocked + 1, redis.call('PTTL', KEYS[blocked + 1])}
    if wait == 0 then return answer end
    local entry = redis.call('HGET', waiting, id)
    local ticket = entry and string.match(entry, '^%d+') or redis.call('HINCRBY', waiting, '#', 1)
    if not entry then
      redis.call('HSET', waiting, id, ticket .. ' ' .. string.format('%.0f', now + wait))
      redis.call('PEXPIRE', waiting, math.max(wait, redis.call('PTTL', waiting)))
    end
    for i = 1, n do
      local queue = queue_prefix .. KEYS[i + 1]
      if redis.call('ZADD', queue, ticket, id) == 1 then
        redis.call('PEXPIRE', queue, math.max(wait, redis.call('PTTL', queue)))
      end
    end
    return answer
  end
end
if wait and leave(scope, id) then
  for i = 1, n do redis.call('ZREM', queue_prefix .. KEYS[i + 1], id) end
end

local fence = redis.pcall('INCR', KEYS[1])
if type(fence) == 'table' or fence < tonumber(ARGV[6]) then
  local mark = string.match(redis.call('GET', KEYS[1]), '^lost (%w+)$')
  if not mark or mark ~= ARGV[9] then
    if not mark then
      mark = ARGV[7]
      redis.call('SET', KEYS[1], 'lost ' .. mark)
    end
    return {'no_fence', mark}
  end
  redis.call('SET', KEYS[1], ARGV[8])
  fence = redis.call('INCR', KEYS[1])
end
fence = string.format('%.0f', fence)

local acquisition = ':' .. fence .. '.' .. id
for i = 1, n do
  local key, value = KEYS[i + 1], values[i]
  if value then
    redis.call('SET', key, without(value, ANY, id) .. acquisition, 'PX', math.max(lease, redis.call('PTTL', key)))
  else
    redis.call('SET', key, owner .. acquisition, 'PX', lease)
  end
end
return {'ok', fence}
