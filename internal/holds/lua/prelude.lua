-- What every script has in common. scripts.go puts it in front of each of them, and begin at the
-- beginning of each call (see internal/lua: several calls share a run of their script).
--
-- KEYS  1 epoch of the partition. All that a script works on has its hash tag; record/keys.go lists it.
-- ARGV
--   1 epoch     what it must be, and after an @ the history of the server that has it, if that is known,
--               and after another @ the time (ms) to use in place of Redis' clock: only tests supply one
--   2 resource  its id, the member of the agenda
--   3 prefix    what the keys of the resource begin with
-- Returns {status, ...}; the status is a word:
--   ok       done, the rest is the answer
--   lost     the epoch is missing or another one, or the server is: Redis lost its data, nothing was read or
--            written
--   found_corrupt  a counter or a record is not what the scripts write, what; nothing of that hold was written
--
-- The scripts start with a shebang, so a Redis that is read-only, cannot persist or, for
-- place.lua, is out of memory refuses them before their first command and never in their midst.

local EPOCH, AGENDA, COUNTS, USERS, RECORDS, DUE
local resource, prefix
local epoch -- of the partition
local replication, time_ms, now, now_text -- of the run; now is Redis' time, but for tests that move it
local sweep_budget -- holds that the run may still expire

-- A whole number as text. Redis and Lua by themselves take the long way through all digits of a fraction.
local function int(number) return string.format('%d', number) end

-- Whether this server is_primary, with a history. It is asked in the same step as all the rest, because a server
-- may follow another that has older data, with the same epoch, and lead again before anybody has looked. It
-- takes some microseconds of a run. A server that begins a new history by itself is refused until the Keeper
-- has looked at it: only he can tell.
local function is_primary(history)
  replication = replication or redis.call('INFO', 'replication')
  return string.find(replication, 'role:master', 1, true) ~= nil
    and string.match(replication, 'master_replid:(%x+)') == history
end

-- Makes KEYS and ARGV those of a call. Returns whether the partition has the epoch, and all that was written
-- under it.
local function begin(KEYS, ARGV)
  resource, prefix = ARGV[2], ARGV[3]
  COUNTS, USERS, RECORDS, DUE = prefix .. 'counts', prefix .. 'users', prefix .. 'records', prefix .. 'due'
  if EPOCH ~= KEYS[1] then
    EPOCH = KEYS[1]
    AGENDA = string.sub(EPOCH, 1, -6) .. 'agenda'
    epoch = redis.call('GET', EPOCH)
  end
  local name, history, clock = string.match(ARGV[1], '^([^@]*)@?([^@]*)@?(%d*)$')
  if not now then
    local time = redis.call('TIME')
    time_ms = time[1] * 1000 + math.floor(time[2] / 1000)
    now = tonumber(clock or '') or time_ms
    now_text = int(now)
  end
  return epoch == name and (history == '' or is_primary(history))
end

-- A record is one line, its words separated by one space (record/record.go is its Go twin):
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
  return hold.state .. ' ' .. int(hold.deadline) .. ' ' .. int(hold.created) .. ' ' .. int(hold.quantity) .. ' ' ..
    int(hold.ended) .. ' ' .. hold.by .. ' ' .. hold.tail
end

local function split(slots)
  local names = {}
  for name in string.gmatch(slots, '[^,]+') do names[#names + 1] = name end
  return names
end

-- The field of USERS that has the id of the live hold of a user on just these slots. How many live holds
-- a user has is in the field of his name, which has no space.
local function index_field(user, slots) return user .. ' ' .. redis.sha1hex(slots) end

-- Its key is there when the payment of a hold was started. It is remembered for memory_ms, which is
-- longer than any hold lives.
local function started_key(id) return prefix .. 'started:' .. id end

-- The key whose expiry is the hint that a hold has lapsed; one GET of it shows a live hold.
local function set_hold_key(id, hold_json, deadline)
  redis.call('SET', prefix .. 'hold:' .. id, hold_json .. ',"expires_at_ms":' .. deadline .. '}', 'PXAT', deadline)
end

-- What is hold_json of a hold, but for its deadline. cjson escapes slashes, which nobody else does.
local function hold_json(hold)
  local user = string.gsub(cjson.encode(hold.user), '\\/', '/')
  return '{"user_id":' .. user .. ',"quantity":' .. int(hold.quantity) .. ',"asked":' .. hold.asked
end

local function schedule(at)
  redis.call('ZADD', AGENDA, 'LT', at, resource)
end

local function late_id(id) return 'late:' .. id end
local function is_late(id) return string.sub(id, 1, 5) == 'late:' end

-- What a payment is to a hold that is, or was, claimed by one.
local function claim_word(hold, payment)
  if hold.state == 'confirming' then return hold.by == payment and 'claimed' or 'claimed_by_other' end
  return hold.by == payment and 'confirmed' or 'already_confirmed'
end

-- Whether a field of USERS is a number of live holds, or is not there.
local function is_count(field) return not field or string.match(field, '^%-?%d+$') ~= nil end

-- Ends a live hold: gives its counts back and removes what only a live hold has, but for its entry in DUE
-- when it is swept: then its caller removes it, with others.
-- Whoever calls it has seen the state held or confirming in this same script, so it
-- runs once per hold. Returns nil, or what is found_corrupt (then nothing was written).
local function end_hold(id, hold, state, ended, by, memory_ms, swept)
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
  local index = index_field(hold.user, hold.slots)
  local user_fields, removed_fields = redis.call('HMGET', USERS, hold.user, index), {}
  if not is_count(user_fields[1]) then return 'count of a user' end
  local count = tonumber(user_fields[1] or '0')
  if count <= 1 then removed_fields[1] = hold.user end
  if user_fields[2] == id then removed_fields[#removed_fields + 1] = index end
  -- From here on all is written: each key has been read, or this is the first to be written.
  if not swept and not is_late(id) then redis.call('ZREM', DUE, id) end
  if #keep > 0 then redis.call('HSET', COUNTS, unpack(keep)) end
  if #drop > 0 then redis.call('HDEL', COUNTS, unpack(drop)) end
  if count > 1 then redis.call('HSET', USERS, hold.user, int(count - 1)) end
  if #removed_fields > 0 then redis.call('HDEL', USERS, unpack(removed_fields)) end
  if not is_late(id) then
    redis.call('DEL', prefix .. 'hold:' .. id, started_key(id))
    redis.call('PEXPIRE', prefix .. 'request:' .. hold.request_key, memory_ms)
  end
  hold.state, hold.ended, hold.by = state, ended, by
  redis.call('HSET', RECORDS, id, format(hold))
  return nil
end

-- How long rev is kept after a change: far longer than what was read under it is decided on (readAge).
local REV_MS = 3600000

-- Counts a change of capacity or reserved: who has read Postgres before must read it again. rev ends an hour after the
-- last change, and begins with a time, so that a value that was read before its end does not come back after it.
-- Returns whether rev is found_corrupt; then nothing was written.
local function bump_rev()
  local rev, time = prefix .. 'rev', redis.call('TIME')
  redis.call('SET', rev, int(time[1] * 1000000 + time[2]), 'NX', 'PX', REV_MS)
  if type(redis.pcall('INCR', rev)) == 'table' then return true end
  redis.call('PEXPIRE', rev, REV_MS)
  return false
end

-- An ended hold is remembered as a tombstone for memory_ms.
local function add_tombstone(id, memory_ms)
  redis.call('ZADD', prefix .. 'tombstones', now + memory_ms, id)
  schedule(now + memory_ms)
end

-- A lapsed hold departs: its counts are back, its hold.expired is still to be announced.
local function expire(id, hold, memory_ms)
  local corrupt = end_hold(id, hold, 'expired', now, '-', memory_ms)
  if corrupt then return corrupt end
  redis.call('ZADD', prefix .. 'departing', now, id)
  schedule(now)
  return nil
end

-- Lapses holds whose deadline has come, at most limit in all calls of a run. Returns whether there
-- may be more, what is found_corrupt, if anything, and the resource's earliest deadline, nil when it is
-- not known. What is found_corrupt stays due, so that it is told until it is mended; others of the run do not
-- wait for it.
local function sweep(limit, memory_ms)
  local first = tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
  if not first or first > now then return false, nil, first end
  sweep_budget = sweep_budget or limit
  if sweep_budget == 0 then return true end
  local ids = redis.call('ZRANGE', DUE, '-inf', now, 'BYSCORE', 'LIMIT', 0, sweep_budget)
  local DEPARTING = prefix .. 'departing'
  redis.call('ZRANGE', DEPARTING, 0, 0) -- what is no sorted set is an error before anything is written
  local corrupt
  local over, departing = {}, {} -- no longer due; of these, what has lapsed
  for i, line in ipairs(redis.call('HMGET', RECORDS, unpack(ids))) do
    local id, hold, found_corrupt = ids[i], line and parse(line), nil
    if line and not hold then
      found_corrupt = 'record of ' .. id
    elseif not hold or hold.state ~= 'held' then
      over[#over + 1] = id
    elseif hold.deadline > now then
      redis.call('ZADD', DUE, hold.deadline, id)
    else
      found_corrupt = end_hold(id, hold, 'expired', now, '-', memory_ms, true)
      if not found_corrupt then
        over[#over + 1] = id
        departing[#departing + 1] = now
        departing[#departing + 1] = id
      end
    end
    if not found_corrupt then sweep_budget = sweep_budget - 1 end
    corrupt = found_corrupt or corrupt
  end
  if #over > 0 then redis.call('ZREM', DUE, unpack(over)) end
  if #departing > 0 then
    redis.call('ZADD', DEPARTING, unpack(departing))
    schedule(now)
  end
  return sweep_budget == 0, corrupt
end
