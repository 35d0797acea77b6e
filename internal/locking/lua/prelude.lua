-- The common part of the scripts of a range lock.
--
-- The locked keys of a scope are fields of the hash <scope>locks, which costs a script much less
-- than as many keys with a TTL. A field is "<value> <until_ms>". The key is locked until until_ms
-- by Redis' clock, but for no longer than LEASE_MAX_MS: a later end is that of a clock that has been
-- set back. The hash has a TTL that covers all its locks, so a worker that dies leaves
-- nothing behind.
--
-- The value of a locked key is <owner>:<acquisition>, with another :<acquisition> for each time
-- that the owner has locked the key again. An acquisition is <fencing token>.<id>. Its id is never
-- used again, so an acquisition that was released or has expired is never confused with a later
-- one.

-- Returns value without the acquisition (fence may be a pattern), and whether value contained it.
local function remove_acquisition(value, fence, id)
  local rest, found = string.gsub(value .. ':', ':' .. fence .. '%.' .. id .. ':', ':', 1)
  return string.sub(rest, 1, -2), found == 1
end

local ANY = '%d+'

-- Returns the key that exists when an acquisition has left. An abandoned attempt of it may arrive
-- later on another connection. With this key the attempt is refused and does not queue.
local function gone_key(scope, id) return scope .. 'gone:' .. id end

-- Removes an acquisition from the hash of waiters. Returns whether it was a waiter. Its entries in
-- the queues have no effect after that.
local function leave_queue(scope, id)
  local was = redis.call('HDEL', scope .. 'waiting', id) == 1
  if was and redis.call('HLEN', scope .. 'waiting') == 1 then
    redis.call('DEL', scope .. 'waiting') -- only the last ticket was left
  end
  return was
end

-- Returns the reply of a command that reads a key. A value of another type locks nothing and orders no waiters: it is
-- deleted, and the reply is empty.
local function read_or_delete(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then error(reply) end
  redis.call('DEL', key)
  return {}
end

-- Formats a whole number. The conversions of Redis and Lua are slower, because they handle
-- fractions.
local function int(number) return string.format('%d', number) end

-- Returns Redis' time in milliseconds, the same for all calls of a run.
local time_ms
local function clock()
  if not time_ms then
    local time = redis.call('TIME')
    time_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return time_ms
end

local LEASE_MAX_MS = 60000 -- LeaseMax

-- Returns the value of a locked key and the end of its lease, from its field. Returns nil when the
-- key is not locked.
local function live_value(field)
  if not field then return nil end
  local value, until_ms = string.match(field, '^(%S+) (%d+)$')
  until_ms = tonumber(until_ms)
  if until_ms and until_ms > clock() then return value, math.min(until_ms, clock() + LEASE_MAX_MS) end
  return nil
end

-- Stores the ends of the leases of keys that were written before Redis' clock was set back. The owner may
-- be dead: then nothing else ends its locks before the clock is where it was.
local function cap_leases(locks, keys, fields)
  for i, key in ipairs(keys) do
    local value, until_ms = live_value(fields[i])
    if until_ms == clock() + LEASE_MAX_MS then redis.call('HSET', locks, key, value .. ' ' .. int(until_ms)) end
  end
end

-- Sets the TTL of the hash to at least lease_ms.
local function extend_hash_ttl(locks, lease_ms)
  if redis.call('PTTL', locks) < lease_ms then redis.call('PEXPIRE', locks, int(lease_ms)) end
end

-- Sets waited_for for at least wait_ms. Releases are published only while it exists.
local function note_waiter(scope, wait_ms)
  local key = scope .. 'waited_for'
  if redis.call('PTTL', key) < wait_ms then redis.call('SET', key, '1', 'PX', int(math.max(wait_ms, 1))) end
end
