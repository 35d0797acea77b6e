-- What every script begins with. scripts.go puts it in front of each of them.
--
-- KEYS (of one resource, all with the hash tag of its partition; keys.go lists them)
--   1 epoch  2 agenda  3 counts  4 records  5 due  6 departing  7 tombstones  8 rev  9 users
-- ARGV
--   1 epoch     what the partition's epoch must be
--   2 resource  its id, the member of the agenda
--   3 prefix    what the keys that depend on data begin with: lock: hold: index: request: extension: started:
-- Returns {status, ...}; the status is a word:
--   ok       done, the rest is the answer
--   lost     the epoch is missing or another one: Redis lost its data, nothing was read or written
--   damaged  a counter or a record is not what the scripts write, what; nothing of that hold was written
--
-- The scripts start with a shebang, so a Redis that is read-only, cannot persist or, for
-- place.lua, is out of memory refuses them before their first command and never in their midst.

local EPOCH, AGENDA, COUNTS, RECORDS, DUE, DEPARTING, TOMBSTONES, REV, USERS = unpack(KEYS)
local resource, prefix = ARGV[2], ARGV[3]

if redis.call('GET', EPOCH) ~= ARGV[1] then
  return {'lost'}
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A record is one line, its words separated by one space (record.go is its Go twin):
--   state deadline_ms created_ms quantity ended_ms by user request_key slots asked metadata
-- by is the payment of a claimed or confirmed hold, the cause of a released one, else "-".
-- Workers of different versions read each other's records: a new word is no part of them.
--
-- What a late payment takes again of a lapsed hold <id> is a record of its own, late:<id>: it is
-- confirming or confirmed, and has no request, no index and no limit. The hold itself stays expired.
local function parse(line)
  local state, deadline, created, quantity, ended, by, tail =
    string.match(line, '^(%a+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  if not state then return nil end
  local user, request_key, slots, asked = string.match(tail, '^(%S+) (%S+) (%S+) (%S+) ')
  if not user then return nil end
  return {
    state = state, deadline = tonumber(deadline), created = tonumber(created), quantity = tonumber(quantity),
    ended = tonumber(ended), by = by, tail = tail,
    user = user, request_key = request_key, slots = slots, asked = asked,
  }
end

local function format(hold)
  return table.concat({hold.state, hold.deadline, hold.created, hold.quantity, hold.ended, hold.by, hold.tail}, ' ')
end

local function split(slots)
  local names = {}
  for name in string.gmatch(slots, '[^,]+') do names[#names + 1] = name end
  return names
end

local function index_key(user, slots)
  return prefix .. 'index:' .. user .. ':' .. redis.sha1hex(slots)
end

-- Its key is there when the payment of a hold was started. It is remembered for memory_ms, which is
-- longer than any hold lives.
local function started_key(id) return prefix .. 'started:' .. id end

-- The key whose expiry is the hint that a hold has lapsed; one GET of it shows a live hold.
local function show(id, hold)
  redis.call('SET', prefix .. 'hold:' .. id,
    '{"user_id":' .. cjson.encode(hold.user) .. ',"quantity":' .. hold.quantity .. ',"asked":' .. hold.asked ..
    ',"expires_at_ms":' .. hold.deadline .. '}', 'PXAT', hold.deadline)
end

local function attend(at)
  redis.call('ZADD', AGENDA, 'LT', at, resource)
end

local function late_id(id) return 'late:' .. id end
local function is_late(id) return string.sub(id, 1, 5) == 'late:' end

-- What a payment is to a hold that is, or was, claimed by one.
local function claim_word(hold, payment)
  if hold.state == 'confirming' then return hold.by == payment and 'claimed' or 'claimed_by_other' end
  return hold.by == payment and 'confirmed' or 'already_confirmed'
end

-- Ends a live hold: gives its counts back and removes what only a live hold has.
-- Whoever calls it has seen the state held or confirming in this same script, so it
-- runs once per hold. Returns nil, or what is damaged (then nothing was written).
local function finish(id, hold, state, ended, by, memory_ms)
  local names = split(hold.slots)
  local held = redis.call('HMGET', COUNTS, unpack(names))
  local keep, drop = {}, {}
  for i, name in ipairs(names) do
    local count = tonumber(held[i] or '')
    if not count or count < hold.quantity then return 'count of ' .. name end
    if count > hold.quantity then
      keep[#keep + 1] = name
      keep[#keep + 1] = count - hold.quantity
    else
      drop[#drop + 1] = name
    end
  end
  if #keep > 0 then redis.call('HSET', COUNTS, unpack(keep)) end
  if #drop > 0 then redis.call('HDEL', COUNTS, unpack(drop)) end
  if redis.call('HINCRBY', USERS, hold.user, -1) <= 0 then redis.call('HDEL', USERS, hold.user) end
  if not is_late(id) then
    redis.call('ZREM', DUE, id)
    redis.call('DEL', prefix .. 'hold:' .. id, started_key(id), index_key(hold.user, hold.slots))
    redis.call('PEXPIRE', prefix .. 'request:' .. hold.request_key, memory_ms)
  end
  hold.state, hold.ended, hold.by = state, ended, by
  redis.call('HSET', RECORDS, id, format(hold))
  return nil
end

-- An ended hold is remembered as a tombstone for memory_ms.
local function bury(id, memory_ms)
  redis.call('ZADD', TOMBSTONES, now + memory_ms, id)
  attend(now + memory_ms)
end

-- A lapsed hold departs: its counts are back, its hold.expired is still to be announced.
local function lapse(id, hold, memory_ms)
  local damage = finish(id, hold, 'expired', now, '-', memory_ms)
  if damage then return damage end
  redis.call('ZADD', DEPARTING, now, id)
  attend(now)
  return nil
end

-- Lapses at most limit holds whose deadline has come. Returns how many entries it took
-- from the deadline index (limit = there may be more), and what is damaged, if anything.
local function sweep(limit, memory_ms)
  local ids = redis.call('ZRANGE', DUE, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    local line = redis.call('HGET', RECORDS, id)
    local hold = line and parse(line)
    if not hold or hold.state ~= 'held' then
      redis.call('ZREM', DUE, id)
    elseif hold.deadline > now then
      redis.call('ZADD', DUE, hold.deadline, id)
    else
      local damage = lapse(id, hold, memory_ms)
      if damage then return #ids, damage end
    end
  end
  return #ids, nil
end
