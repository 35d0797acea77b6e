-- Repairs differences of a resource. It checks each difference again in this step and repairs it
-- only if it is still the planned one. A number that changed by as much as its expected value is
-- the same difference.
--
-- ARGV  4 memory_ms  for how long an ended hold is remembered
--       5 only_safe  1 = no operator has confirmed: counters and numbers of users are lowered only if the other
--                    one and the deadlines show that no hold is missing
--       6 limit      of records: counters of a larger resource are not summed up in one step
--       then four words each: what name found expected
-- Returns ok, and a word each:
--   done | gone: it no longer existed | changed: it is a different one now, or adjust.lua repairs
--   the counters | unsafe | impossible |
--   large: nothing was changed, adjust.lua does it

local memory_ms, only_safe, limit = tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
local REV_MS = 3600000 -- how long rev stays after its last change

local function schedule(at)
  if not broken.agenda then redis.call('ZADD', AGENDA, 'LT', at, resource) end
end

local function put(key, name, expected)
  if expected == '-' then redis.call('HDEL', key, name) else redis.call('HSET', key, name, expected) end
  return 'done'
end

local function put_entry(key, name, id, expected)
  if broken[name] then return 'changed' end
  if expected == '-' then
    redis.call('ZREM', key, id)
  else
    redis.call('ZADD', key, expected, id)
    schedule(expected)
  end
  return 'done'
end

local counted, index = false, {} -- of the users: field -> id
local function count_all()
  if counted then return end
  counted = true
  each_record(function(id, hold)
    count(id, hold)
    if hold and hold.live and not hold.late then
      local field = index_field(hold)
      if not index[field] or id < index[field] then index[field] = id end
    end
  end)
end

local agreed -- whether the counters, and the users, equalled the records when nothing_missing was called first
-- Whether the deadlines, and the counters or the users, contain no more holds than the records.
local function nothing_missing(but)
  count_all()
  if broken.records or broken.due or unread > 0 or redis.call('ZCARD', DUE) ~= held_records then return false end
  if not agreed then
    local before = differences
    differences, agreed = {}, {counter = true, users = true}
    check_sums()
    for _, d in ipairs(differences) do agreed[d[1]] = false end
    differences = before
  end
  return (but == 'counter' or agreed.counter) and (but == 'users' or agreed.users)
end

local function lowers(found, expected)
  if found == '-' then return false end
  return not tonumber(found) or tonumber(found) > (tonumber(expected) or 0)
end

local FIELDS_MAX = 1000 -- that one command writes

local function put_all(key, values)
  local fields = {}
  local function write()
    if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
    fields = {}
  end
  for name, value in pairs(values) do
    fields[#fields + 1], fields[#fields + 2] = name, type(value) == 'number' and whole(value) or value
    if #fields >= 2 * FIELDS_MAX then write() end
  end
  write()
end

local all_counted = false -- whether this call has written all counts

local REPAIR = {
  type = function(name)
    if name == 'records' then return 'impossible' end
    local derived = ({counts = 'counter', users = 'users'})[name]
    if derived then
      -- Everything is written in this step: the next grant would take a missing field as zero.
      count_all()
      if broken.records or unread > 0 then return 'impossible' end
      if only_safe and not nothing_missing(derived) then return 'unsafe' end
    end
    for _, t in ipairs(TYPES) do
      if t[1] == name then
        redis.call('DEL', t[2])
        -- A number that no worker has read before.
        if name == 'rev' then redis.call('SET', t[2], whole(now), 'PX', REV_MS) end
      end
    end
    broken[name] = nil
    if name == 'counts' then put_all(COUNTS, sums) end
    if name == 'users' then
      put_all(USERS, live_of)
      put_all(USERS, index)
    end
    return 'done'
  end,
  counter = function(name, found, expected)
    if broken.counts or expected == 'unknown' then return 'changed' end
    -- Scripts refuse to grant while the key is missing, and take a missing field for zero: write all in this step.
    if redis.call('EXISTS', COUNTS) == 0 then
      if only_safe and not nothing_missing('counter') then return 'unsafe' end
      put_all(COUNTS, sums)
      all_counted = true
      return 'done'
    end
    if only_safe and lowers(found, expected) and not nothing_missing('counter') then return 'unsafe' end
    return put(COUNTS, name, expected)
  end,
  users = function(name, found, expected)
    if broken.users then return 'changed' end
    if only_safe and lowers(found, expected) and not nothing_missing('users') then return 'unsafe' end
    return put(USERS, name, expected)
  end,
  due = function(id, _, expected) return put_entry(DUE, 'due', id, expected) end,
  departing = function(id, _, expected)
    return put_entry(DEPARTING, 'departing', id, expected == '-' and '-' or whole(now))
  end,
  tombstone = function(id, _, expected)
    return put_entry(TOMBSTONES, 'tombstones', id, expected == '-' and '-' or whole(now + memory_ms))
  end,
  index = function(id, found)
    if broken.users then return 'changed' end
    local hold = record_of(id)
    local other = found ~= '-' and record_of(found)
    if other and other.live and index_field(other) == index_field(hold) then return 'impossible' end
    redis.call('HSET', USERS, index_field(hold), id)
    return 'done'
  end,
  hold_key = function(id)
    local hold = record_of(id)
    redis.call('SET', prefix .. 'hold:' .. id, hold.deadline, 'PXAT', hold.deadline)
    return 'done'
  end,
  agenda = function(_, _, expected)
    if broken.agenda then return 'changed' end
    if expected == '-' then redis.call('ZREM', AGENDA, resource) else schedule(expected) end
    return 'done'
  end,
  rev = function()
    redis.call('SET', REV, whole(now), 'PX', REV_MS)
    return 'done'
  end,
  residue = function(name)
    local field = string.match(name, '^index:(.*)$')
    if field then
      redis.call('HDEL', USERS, field)
      return 'done'
    end
    -- Some are answers, which are remembered for a while.
    if type_of(prefix .. name) == 'string' and (string.match(name, '^request:') or string.match(name, '^extension:')) then
      redis.call('PEXPIRE', prefix .. name, memory_ms)
    else
      redis.call('DEL', prefix .. name)
    end
    return 'done'
  end,
}

-- Checks one counter, or the number of a user's holds. To be called after count_all.
local function check_sum(what, name)
  if unread > 0 or broken.records then return differs(what, name, 'unknown') end
  local part, key, sum = 'counts', COUNTS, sums[name]
  if what == 'users' then part, key, sum = 'users', USERS, live_of[name] end
  compare(what, name, not broken[part] and redis.call('HGET', key, name) or nil, sum)
end

-- Checks one thing again.
local function check(what, name)
  if what == 'type' then return check_types() end
  if what == 'agenda' then return check_agenda() end
  if what == 'rev' then return check_rev() end
  if what == 'residue' then return check_key(name) end
  if what == 'counter' or what == 'users' then
    count_all()
    return check_sum(what, name)
  end
  local hold, line = record_of(name)
  HOLD_CHECKS[what](name, hold, line)
end

local function same(d, what, name, found, expected)
  if d[1] ~= what or d[2] ~= name then return false end
  local numbers = tonumber(d[3]) and tonumber(found) and (what == 'counter' or what == 'users')
  if not numbers then return d[3] == found end
  return d[3] - (tonumber(d[4]) or 0) == found - (tonumber(expected) or 0)
end

local reply = {'ok'}
for i = 7, #ARGV, 4 do
  local what, name, found, expected = unpack(ARGV, i, i + 3)
  differences = {}
  local planned, word = nil, 'gone'
  local derived = what == 'counter' or what == 'users' or what == 'type' and (name == 'counts' or name == 'users')
  if derived and redis.call('EXISTS', prefix .. 'lock') == 1 then
    word = 'changed' -- adjust.lua is about to subtract a difference, which this would subtract too
  elseif derived and size_of_sums() > limit then
    word = 'large'
  else
    check(what, name)
    if all_counted and what == 'counter' then word = 'done' end
  end
  for _, d in ipairs(differences) do
    if d[1] == what and d[2] == name then word = 'changed' end
    if same(d, what, name, found, expected) then planned = d end
  end
  reply[#reply + 1] = planned and REPAIR[what](name, planned[3], planned[4]) or word
end
return reply
