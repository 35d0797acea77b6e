-- What the scripts of a range lock begin with.
--
-- The keys of a scope that are locked are fields of the hash <scope>locks: their number costs a script
-- much less than so many keys with a TTL would. The value of one is "<value> <until_ms>", and counts
-- for nothing from then on, by Redis' clock. The hash ends by itself, no earlier than any lock in it, so
-- that nothing stays of a worker that has died.
--
-- The value of a locked key is <owner>:<acquisition>, and one more :<acquisition> for each time
-- that the owner has locked the key again. An acquisition is <fencing token>.<id>; its id never
-- repeats, so one that was released or has lapsed is never taken for a later one.

-- Returns value remove_acquisition the acquisition (fence may be a pattern), and whether it was there.
local function remove_acquisition(value, fence, id)
  local rest, found = string.gsub(value .. ':', ':' .. fence .. '%.' .. id .. ':', ':', 1)
  return string.sub(rest, 1, -2), found == 1
end

local ANY = '%d+'

-- Returns the key that says that an acquisition has left: an attempt of its that nobody waited for
-- may come later than that, by another connection. It would queue for nobody.
local function gone_key(scope, id) return scope .. 'gone:' .. id end

-- Takes an acquisition off the list of those who wait. Returns whether it was on it. Its places in
-- the queues count for nothing then.
local function leave_queue(scope, id)
  local was = redis.call('HDEL', scope .. 'waiting', id) == 1
  if was and redis.call('HLEN', scope .. 'waiting') == 1 then
    redis.call('DEL', scope .. 'waiting') -- only the last ticket was left
  end
  return was
end

-- A whole number as text, remove_acquisition the long way through the digits of a fraction.
local function int(number) return string.format('%d', number) end

-- Redis' time, the same for all calls of a run.
local time_ms
local function clock()
  if not time_ms then
    local time = redis.call('TIME')
    time_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return time_ms
end

-- Returns the value of a locked key and until when it is locked, from its field; nil when nobody holds it.
local function live_value(field)
  if not field then return nil end
  local value, until_ms = string.match(field, '^(%S+) (%d+)$')
  until_ms = tonumber(until_ms)
  if until_ms and until_ms > clock() then return value, until_ms end
  return nil
end

-- Has the locks last for at least lease_ms from now on.
local function extend_hash_ttl(locks, lease_ms)
  if redis.call('PTTL', locks) < lease_ms then redis.call('PEXPIRE', locks, int(lease_ms)) end
end

-- Notes that somebody waits for a key of the scope, for at most wait_ms: remove_acquisition such a note a release is
-- not told, because nobody listens.
local function note_waiter(scope, wait_ms)
  local key = scope .. 'waited_for'
  if redis.call('PTTL', key) < wait_ms then redis.call('SET', key, '1', 'PX', int(math.max(wait_ms, 1))) end
end
