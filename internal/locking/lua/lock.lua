-- Locks a set of keys, all of them or none.
--
-- KEYS  1 fence (the counter of locks)  2 locks (hash)
-- ARGV  1 owner, without a colon; "-" for no owner, which cannot lock a key again
--       2 id of the acquisition (letters and digits): the same at each attempt, and when an attempt is
--         repeated because its reply was lost
--       3 lease_ms
--       4 scope    prefix of the keys that waiters share: <scope>waited_for, <scope>waiting,
--                  <scope>queue:<key>
--       5 wait_ms  "" without a queue. Otherwise the attempt does not overtake the queue and, if it is
--                  blocked, queues for this time, at most WAIT_MAX_MS; "0" does not queue
--       6 fence_min  the lowest possible base
--       7 mark       a new random text, to mark a lost fence
--       8 base  9 drawn_for: "" at first, see no_fence
--       then the keys to lock, without repeats
-- Returns ok fence             every key now has the acquisition <fence>.<id>
--         blocked n lease_ms   another owner holds the n-th key, for at most lease_ms
--         behind n wait_ms id  the n-th key is free, but the acquisition id has waited longer for it and
--                              waits for at most wait_ms
--         left                 the acquisition had already left when this attempt arrived
--         no_fence mark        Redis has lost the fence or never had one. The fence now has this mark.
--                              Draw a base above all earlier fences and call again with base and mark
--                              (drawn_for). If the fence was lost again meanwhile, the mark differs and
--                              the base is too old.

local FIXED_ARGS = 9
local WAIT_MAX_MS = 60000 -- waitMax

local function still_waits(deadline)
  return deadline and deadline > clock() and deadline <= clock() + WAIT_MAX_MS
end

local function run(KEYS, ARGV)
  local FENCE, LOCKS = KEYS[1], KEYS[2]
  local owner, id, lease, scope, wait = ARGV[1], ARGV[2], ARGV[3] + 0, ARGV[4], tonumber(ARGV[5])
  local keys = {unpack(ARGV, FIXED_ARGS + 1)}
  local n, now = #keys, clock()
  if wait and redis.call('EXISTS', gone_key(scope, id)) == 1 then return {'left'} end
  local fields = read_or_delete('HMGET', LOCKS, unpack(keys))

  local blocked, blocked_ms, reentrant
  for i = 1, n do
    local value, until_ms = live_value(fields[i])
    if value then
      local _, is_own = remove_acquisition(value, ANY, id)
      if is_own or owner ~= '-' and string.match(value, '^[^:]*') == owner then
        reentrant = true
      else
        blocked, blocked_ms = i, until_ms - now
        break
      end
    end
  end
  if blocked then cap_leases(LOCKS, keys, fields) end
  if blocked and not wait then
    note_waiter(scope, blocked_ms)
    return {'blocked', blocked, blocked_ms}
  end

  -- The queue: each key has a zset of its waiters, ordered by ticket. All keys of a scope share the
  -- hash waiting, id -> "ticket deadline_ms", with the last ticket in the field "#". A waiter gets
  -- its ticket and enters all its queues in one step. So the waiter with the lowest ticket is first
  -- in all its queues, and at least one waiter can always continue. A waiter past its deadline is
  -- dead, and so is one whose deadline is later than any can be, because Redis' clock was set back. The
  -- next attempt that finds it at the front removes it. If it lives, its next attempt queues again.
  local waiting, queue_prefix = scope .. 'waiting', wait and scope .. 'queue:'
  if wait then
    read_or_delete('HLEN', waiting)
    for i = 1, n do read_or_delete('ZRANGE', queue_prefix .. keys[i], 0, 0) end
  end
  if wait and (blocked or not reentrant) then
    local behind
    if not blocked then
      for i = 1, n do
        local queue = queue_prefix .. keys[i]
        local head = redis.call('ZRANGE', queue, 0, 0)[1]
        while head and head ~= id do
          local entry = redis.call('HGET', waiting, head)
          local deadline = entry and tonumber(string.match(entry, ' (%d+)$'))
          if still_waits(deadline) then
            behind = {'behind', i, deadline - now, head}
            break
          end
          redis.call('ZREM', queue, head)
          leave_queue(scope, head)
          head = redis.call('ZRANGE', queue, 0, 0)[1]
        end
        if behind then break end
      end
    end
    if blocked or behind then
      local answer = behind or {'blocked', blocked, blocked_ms}
      if wait == 0 then return answer end
      note_waiter(scope, wait)
      local entry = redis.call('HGET', waiting, id)
      local ticket = entry and string.match(entry, '^%d+') or redis.call('HINCRBY', waiting, '#', 1)
      if not entry then
        redis.call('HSET', waiting, id, ticket .. ' ' .. string.format('%.0f', now + wait))
        redis.call('PEXPIRE', waiting, math.max(wait, redis.call('PTTL', waiting)))
        -- A dead waiter stays in the hash if its queue has expired, because no attempt finds it at
        -- a front. So each new waiter checks a random entry of the hash.
        local sampled = redis.call('HRANDFIELD', waiting, 1, 'WITHVALUES')
        local deadline = tonumber(string.match(sampled[2], ' (%d+)$'))
        if deadline and not still_waits(deadline) then leave_queue(scope, sampled[1]) end
      end
      for i = 1, n do
        local queue = queue_prefix .. keys[i]
        if redis.call('ZADD', queue, ticket, id) == 1 then
          redis.call('PEXPIRE', queue, math.max(wait, redis.call('PTTL', queue)))
        end
      end
      return answer
    end
  end
  if wait and leave_queue(scope, id) then
    for i = 1, n do redis.call('ZREM', queue_prefix .. keys[i], id) end
  end

  local fence = redis.pcall('INCR', FENCE)
  if type(fence) == 'table' or fence < ARGV[6] + 0 then
    local found = redis.pcall('GET', FENCE)
    local mark = type(found) == 'string' and string.match(found, '^lost (%w+)$') -- other types are overwritten
    if not mark or mark ~= ARGV[9] then
      if not mark then
        mark = ARGV[7]
        redis.call('SET', FENCE, 'lost ' .. mark)
      end
      return {'no_fence', mark}
    end
    redis.call('SET', FENCE, ARGV[8])
    fence = redis.call('INCR', FENCE)
  end
  fence = int(fence)

  local acquisition = ':' .. fence .. '.' .. id
  local fresh = owner .. acquisition .. ' ' .. int(now + lease)
  local changes = {}
  for i = 1, n do
    local value, until_ms = live_value(fields[i])
    changes[2 * i - 1], changes[2 * i] = keys[i], fresh
    if value then
      changes[2 * i] = remove_acquisition(value, ANY, id) .. acquisition .. ' ' .. int(math.max(now + lease, until_ms))
    end
  end
  redis.call('HSET', LOCKS, unpack(changes))
  extend_hash_ttl(LOCKS, lease)
  return {'ok', fence}
end
