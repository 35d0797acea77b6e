-- The first part of every script of the audit. It knows the keys and the records from holds/doc.go,
-- and shares no code with the scripts that it checks.
--
-- KEYS (of one resource)
--   1 epoch  2 agenda  3 counts  4 records  5 due  6 departing  7 tombstones  8 rev  9 users
-- ARGV
--   1 epoch  which the partition must have  2 resource
--   3 prefix  of its other keys: hold: request: started: extension: locks
-- Returns {status, ...}. Besides the statuses of each script there is
--   lost  the epoch is missing or different: nothing is checked
--
-- A difference is four words: what differs, the name of what differs, found, expected. "-" means
-- missing. found repeats a stored value only if it has the form that the scripts write. Any other
-- value could be anything, including private data like metadata.

local EPOCH, AGENDA, COUNTS, RECORDS, DUE, DEPARTING, TOMBSTONES, REV, USERS = unpack(KEYS)
local resource, prefix = ARGV[2], ARGV[3]

if redis.pcall('GET', EPOCH) ~= ARGV[1] then return {'lost'} end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local differences = {}
local function differs(what, name, found, expected)
  differences[#differences + 1] = {what, name, tostring(found or '-'), tostring(expected or '-')}
end

local function number_in(found) return found and (string.match(found, '^%-?%d+$') or 'nonsense') end

local function whole(number) return string.format('%.0f', number) end

local function type_of(key) return redis.call('TYPE', key)['ok'] end

-- A key of a wrong type is reported once, and treated as empty.
local TYPES = {
  {'agenda', AGENDA, 'zset'}, {'counts', COUNTS, 'hash'}, {'records', RECORDS, 'hash'}, {'due', DUE, 'zset'},
  {'departing', DEPARTING, 'zset'}, {'tombstones', TOMBSTONES, 'zset'}, {'rev', REV, 'string'}, {'users', USERS, 'hash'},
}
local broken = {}
for _, t in ipairs(TYPES) do
  local found = type_of(t[2])
  broken[t[1]] = found ~= 'none' and found ~= t[3] and found or nil
end

local function check_types()
  for _, t in ipairs(TYPES) do
    if broken[t[1]] then differs('type', t[1], broken[t[1]], t[3]) end
  end
end

local function score(name, key, member)
  return not broken[name] and redis.call('ZSCORE', key, member) or nil
end

-- state deadline_ms created_ms quantity ended_ms by user request_key slots asked metadata
local LIVE = {held = true, confirming = true}
local STATES = {held = true, confirming = true, confirmed = true, released = true, expired = true}
local function is_late(id) return string.sub(id, 1, 5) == 'late:' end
local function read(id, line)
  local late = is_late(id)
  local uuid = late and string.sub(id, 6) or id
  if #uuid ~= 32 or string.find(uuid, '%X') then return nil end
  local state, deadline, created, quantity, ended, user, key, slots, tail = string.match(line,
    '^(%a+) (%d+) (%d+) (%d+) (%d+) %S+ (%S+) (%S+) (%S+)() %S+ ')
  if not STATES[state] or quantity == '0' then return nil end
  if state ~= 'held' and ended == '0' then return nil end -- a claim and an end have a time
  return {
    line = line, tail = tail, state = state, live = LIVE[state], late = late, deadline = deadline, created = created,
    quantity = tonumber(quantity), ended = ended, user = user, key = key, slots = slots,
  }
end

local function record_of(id)
  local line = not broken.records and redis.call('HGET', RECORDS, id)
  return line and read(id, line), line
end

-- The users hash has two kinds of fields: the number of a user's live holds, and which of them is
-- on exactly these slots. A user id has no space.
local function index_field(hold) return hold.user .. ' ' .. redis.sha1hex(hold.slots) end
local function is_index(field) return string.find(field, ' ', 1, true) ~= nil end
local function indexed(field) return not broken.users and redis.call('HGET', USERS, field) or nil end

-- The value of a string key, nil if it is missing, or "a" and its type.
local function value_of(name)
  local value = redis.pcall('GET', prefix .. name)
  if type(value) == 'table' then return 'a ' .. type_of(prefix .. name) end
  return value or nil
end

-- When a string key expires: nil = it is missing, "for ever", or milliseconds. For a key of another
-- type "a" and its type, unless it expires exactly at expected.
local function end_of(name, expected)
  local at = redis.call('PEXPIRETIME', prefix .. name)
  if at == -2 then return nil end
  at = at == -1 and 'for ever' or whole(at)
  if at == expected then return at end
  local found = type_of(prefix .. name)
  return found == 'string' and at or 'a ' .. found
end

local function check_due(id, hold)
  local found, expected = score('due', DUE, id), nil
  if hold and hold.state == 'held' and not hold.late then expected = hold.deadline end
  if found ~= expected then differs('due', id, found, expected) end
end

-- When an ended hold is to be announced, and when it is to be deleted.
local function place_of(id, hold)
  if not hold or not hold.placed then
    local leaving, over = score('departing', DEPARTING, id), score('tombstones', TOMBSTONES, id)
    if not hold then return leaving, over end
    hold.placed, hold.leaving, hold.over = true, leaving, over
  end
  return hold.leaving, hold.over
end

-- For how long at most an expired hold waits to be announced again: announceLease of package holds, and a margin.
local ANNOUNCE_MS = 60000

-- An ended hold is either to be announced, or has a tombstone.
local function check_departing(id, hold)
  local leaving, over = place_of(id, hold)
  if leaving and not (hold and hold.state == 'expired' and not over) then
    differs('departing', id, leaving, nil)
  elseif leaving and tonumber(leaving) > now + ANNOUNCE_MS then
    differs('departing', id, leaving, 'an entry')
  elseif hold and hold.state == 'expired' and not leaving and not over then
    differs('departing', id, nil, 'an entry')
  end
end

local function check_tombstone(id, hold)
  local _, over = place_of(id, hold)
  if over and (not hold or hold.live) then
    differs('tombstone', id, over, nil)
  elseif not over and hold and (hold.state == 'released' or hold.state == 'confirmed') then
    differs('tombstone', id, nil, 'an entry')
  end
end

local function check_index(id, hold)
  if not hold or not hold.live or hold.late then return end
  local found = indexed(index_field(hold))
  if found ~= id then differs('index', id, found and (string.match(found, '^%x+$') or 'nonsense'), id) end
end

-- Resharding moves a key with the rest of its time, so it expires later by the time of the move. It only notifies.
local MOVED_MS = 1000

local function check_hold_key(id, hold)
  if not hold or hold.state ~= 'held' or hold.late or tonumber(hold.deadline) <= now then return end
  local found = end_of('hold:' .. id, hold.deadline)
  local late = (tonumber(found or '') or 0) - tonumber(hold.deadline)
  if found == hold.deadline or late > 0 and late <= MOVED_MS then return end
  differs('hold_key', id, found, hold.deadline)
end

local function check_request(id, hold)
  if not hold or not hold.live or hold.late then return end
  local found = value_of('request:' .. hold.key)
  if not found or string.match(found, '^created %S+ %S+ %S+ ([^: ]+):') ~= id then
    differs('request', id, found and (string.match(found, '^[%l_]+') or 'nonsense'), 'created')
  end
end

local function check_record(id, hold, line)
  if line and not hold then differs('record', id, #line .. ' characters', 'a record') end
end

-- How long a claimed payment may wait for its answer. It waits through an outage, and for ever if
-- its event is lost.
local CLAIM_MS = 86400000

local function check_claim(id, hold)
  if hold and hold.state == 'confirming' and now - hold.ended > CLAIM_MS then differs('claim_stuck', id, hold.ended, nil) end
end

local HOLD_CHECKS = {
  record = check_record, due = check_due, departing = check_departing, tombstone = check_tombstone,
  index = check_index, hold_key = check_hold_key, request = check_request,
  claim_stuck = check_claim,
}
local HOLD_ORDER = {'record', 'due', 'departing', 'tombstone', 'index', 'hold_key', 'request', 'claim_stuck'}

local function check_hold(id, hold, line)
  if line and not hold then return check_record(id, hold, line) end
  for _, what in ipairs(HOLD_ORDER) do HOLD_CHECKS[what](id, hold, line) end
end

-- Checks a member of a sorted set that has no record.
local function check_member(name, id)
  local _, line = record_of(id)
  if line or broken.records then return end -- its record was checked
  if name == 'due' then check_due(id, nil) end
  if name == 'departing' then check_departing(id, nil) end
  if name == 'tombstones' then check_tombstone(id, nil) end
end

-- For how long the sweep may put off an announcement, in ms: as in holds/lua/expire.lua.
local PUT_OFF_MS = 500

-- The agenda must have the resource no later than its first due work, unless that is an announcement that was put
-- off, and only if it has any. A resource whose holds are all being paid for has none, and stays on the agenda until
-- the sweep visits it.
local function check_agenda()
  local earliest, latest
  for _, z in ipairs({{'due', DUE}, {'departing', DEPARTING}, {'tombstones', TOMBSTONES}}) do
    local at = not broken[z[1]] and tonumber(redis.call('ZRANGE', z[2], 0, 0, 'WITHSCORES')[2])
    if at then
      earliest = math.min(earliest or at, at)
      if z[1] == 'departing' then at = math.max(at, now + PUT_OFF_MS) end
      latest = math.min(latest or at, at)
    end
  end
  local found = score('agenda', AGENDA, resource)
  if earliest and (not found or tonumber(found) > latest) then differs('agenda', resource, found, whole(earliest)) end
  local known = not broken.due and not broken.departing and not broken.tombstones and not broken.records
  if found and not earliest and known and redis.call('EXISTS', RECORDS) == 0 then differs('agenda', resource, found, nil) end
end

local function check_rev()
  if broken.rev then return end
  local found = redis.call('GET', REV)
  if found and not string.match(found, '^%d+$') then differs('rev', 'rev', number_in(found), 'a number') end
end

-- Whether a line is an answer that workers write, see Answer and ExtensionAnswer of package record.
local DETAILS = {created = '^%x+:%d+$', sold_out = '^[%d-]+|%S+:%d+:%d+:%d+$'}
local function is_answer(kind, line)
  if kind == 'extension' then return string.match(line, '^[%l_]+ %d+ %d+$') ~= nil end
  local word, detail = string.match(line, '^([%l_]+) %S+ %S+ %-?%d+ (%S+) %S+ ')
  return word ~= nil and string.match(detail, DETAILS[word] or '') ~= nil
end

-- An event whose answer cannot be read has none, whether or not a hold is live that the answer names.
local function check_answer(kind, name)
  local line = redis.pcall('GET', prefix .. name)
  if type(line) == 'table' then
    differs('answer', name, 'a ' .. type_of(prefix .. name), 'an answer')
  elseif line and not is_answer(kind, line) then
    differs('answer', name, #line .. ' characters', 'an answer')
  end
end

-- Other keys belong to a hold or expire by themselves. So do the fields of the index, which are
-- named index:<field> here.
local function check_key(name)
  if broken.records then return end
  local kind, rest = string.match(name, '^([%l_]+):?(.*)$')
  if kind == 'hold' or kind == 'started' then
    local hold, line = record_of(rest)
    local reason = hold and hold.live and (kind == 'started' or hold.state == 'held') or line and not hold
    if not reason and redis.call('EXISTS', prefix .. name) == 1 then
      differs('residue', name, hold and 'the hold is ' .. hold.state or 'there is no such hold', nil)
    end
  elseif kind == 'index' then
    local id = indexed(rest)
    if not id then return end
    local hold, line = record_of(id)
    local reason = hold and hold.live and index_field(hold) == rest or line and not hold
    if not reason then
      differs('residue', name, hold and (hold.live and 'it names a hold of another user or on other slots' or 'the hold is ' .. hold.state) or 'there is no such hold', nil)
    end
  elseif kind == 'request' then
    local until_ms = end_of(name)
    if until_ms and string.sub(until_ms, 1, 2) ~= 'a ' then check_answer(kind, name) end
    if not until_ms or string.match(until_ms, '^%d+$') then return end
    local id = string.match(value_of(name), '^created %S+ %S+ %S+ ([^: ]+):')
    local hold = id and record_of(id)
    if not (hold and hold.state == 'confirming' and until_ms == 'for ever') then
      differs('residue', name, until_ms == 'for ever' and 'it has no expiry' or until_ms, nil)
    end
  elseif kind == 'extension' or kind == 'lock' or kind == 'locks' or kind == 'waited_for' or kind == 'waiting' or kind == 'queue' or kind == 'gone' then
    if kind == 'extension' then check_answer(kind, name) end
    if redis.call('PTTL', prefix .. name) == -1 then differs('residue', name, 'it has no expiry', nil) end
  end
end

-- The slots that live holds take and the number of holds of each user, according to the records.
local sums, live_of, held_records, unread = {}, {}, 0, 0
local function take(hold)
  for name in string.gmatch(hold.slots, '[^,]+') do sums[name] = (sums[name] or 0) + hold.quantity end
  live_of[hold.user] = (live_of[hold.user] or 0) + 1
end

-- How much each_record and check_sums read, in records.
local function size_of_sums()
  return math.max(
    broken.records and 0 or redis.call('HLEN', RECORDS),
    broken.users and 0 or math.floor(redis.call('HLEN', USERS) / 2),
    broken.counts and 0 or math.floor(redis.call('HLEN', COUNTS) / 10)
  )
end

-- Calls each(id, hold, line) for every record. hold is nil for a record that cannot be read.
local function each_record(each)
  if broken.records then return end
  local cursor, seen = '0', {} -- pages may repeat a record
  repeat
    local page = redis.call('HSCAN', RECORDS, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local id, line = page[2][i], page[2][i + 1]
      if not seen[id] then each(id, read(id, line), line) end
      seen[id] = true
    end
  until cursor == '0'
end

-- Compares a counter with the sum of the records.
local function compare(what, name, found, sum)
  local want = sum and whole(sum) or nil
  if found ~= want then differs(what, name, number_in(found), want) end
end

local function check_each(what, name, key, expected)
  local found = {}
  if not broken[name] then
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      if not is_index(all[i]) then found[all[i]] = all[i + 1] end
    end
  end
  local names = {}
  for each in pairs(expected) do names[#names + 1] = each end
  for each in pairs(found) do
    if not expected[each] then names[#names + 1] = each end
  end
  table.sort(names)
  for _, each in ipairs(names) do compare(what, each, found[each], expected[each]) end
end

-- To be called after each_record. A record that cannot be read makes the sums unknown.
local function check_sums()
  if broken.records or unread > 0 then return end
  check_each('counter', 'counts', COUNTS, sums)
  check_each('users', 'users', USERS, live_of)
end

local function count(id, hold)
  if not hold then unread = unread + 1 return end
  if hold.live then take(hold) end
  if hold.state == 'held' and not hold.late then held_records = held_records + 1 end
end

-- Appends a record: its id, its words up to the slots, and until when it is remembered, 0 without a tombstone.
local function append_record(reply, id, hold)
  reply[#reply + 1] = id
  reply[#reply + 1] = string.sub(hold.line, 1, hold.tail - 1)
  local leaving, over = place_of(id, hold)
  reply[#reply + 1] = over and not leaving and (string.match(over, '^%d+$') or '1') or '0'
end

local function append_differences(reply)
  reply[#reply + 1] = whole(#differences)
  for _, d in ipairs(differences) do
    for i = 1, 4 do reply[#reply + 1] = d[i] end
  end
end
