-- Reads one page of a resource that is too large for one step. It checks each hold with its keys in
-- this step. It does not check counters: it returns their values, and Go (sums.go) compares them
-- with the records, which state when each hold took its slots and when it gave them back.
--
-- ARGV  4 part: counts | users | named | records | due | departing | tombstones
--       5 cursor  6 count
--       7 since    ms: returns the records of holds that may have had their slots at that time or later
--       8 last     of named: the lowest time of the tombstones whose ids are returned
--       9 records  1 = return all records
--       then, of named, two words for each counter that is read: counter | users, name
-- Returns ok now_ms cursor last  n (id) ...  n (what name counter) ...  n (what name found expected) ...  and
--   records as inspect.lua does. last is the highest time of a tombstone now. The ids, only of named, are at most
--   LATEST_MAX.

local part, cursor, count = ARGV[4], ARGV[5], ARGV[6]
local since, last, wanted = tonumber(ARGV[7]), ARGV[8], ARGV[9] == '1'

local LATEST_MAX = 1000
local counters = {}
local function append_counter(what, name, counter)
  counters[#counters + 1] = what
  counters[#counters + 1] = name
  counters[#counters + 1] = number_in(counter) or '-'
end

-- Whether a hold may have had its slots at since. No record states when a payment was settled.
local function lived(hold)
  return hold.live or hold.state == 'confirmed' or tonumber(hold.ended) >= since
end

-- Reads a page of a hash or a sorted set, and calls each(name, value).
local function each_of(command, key, name, each)
  if broken[name] then
    cursor = '0'
    return
  end
  local page = redis.call(command, key, cursor, 'COUNT', count)
  cursor = page[1]
  for i = 1, #page[2], 2 do each(page[2][i], page[2][i + 1]) end
end

local heads = {}
local PARTS = {
  counts = function()
    if cursor == '0' then
      check_types()
      check_agenda()
      check_rev()
    end
    each_of('HSCAN', COUNTS, 'counts', function(name, counter) append_counter('counter', name, counter) end)
  end,
  users = function()
    each_of('HSCAN', USERS, 'users', function(name, value)
      if is_index(name) then check_key('index:' .. name) else append_counter('users', name, value) end
    end)
  end,
  named = function()
    for i = 10, #ARGV, 2 do
      local what, name = ARGV[i], ARGV[i + 1]
      if what == 'users' then append_counter(what, name, indexed(name)) end
      if what == 'counter' then append_counter(what, name, not broken.counts and redis.call('HGET', COUNTS, name)) end
    end
  end,
  records = function()
    each_of('HSCAN', RECORDS, 'records', function(id, line)
      local hold = read(id, line)
      check_hold(id, hold, line)
      if hold and (wanted or lived(hold)) then append_record(heads, id, hold) end
    end)
  end,
  due = function() each_of('ZSCAN', DUE, 'due', function(id) check_member('due', id) end) end,
  departing = function() each_of('ZSCAN', DEPARTING, 'departing', function(id) check_member('departing', id) end) end,
  tombstones = function()
    each_of('ZSCAN', TOMBSTONES, 'tombstones', function(id) check_member('tombstones', id) end)
  end,
}
PARTS[part]()

local newest = not broken.tombstones and redis.call('ZRANGE', TOMBSTONES, -1, -1, 'WITHSCORES')[2]
newest = newest and string.match(newest, '^%d+$') or '0'
local latest = {}
if newest ~= '0' and part == 'named' then
  latest = redis.call('ZRANGE', TOMBSTONES, last, '+inf', 'BYSCORE', 'LIMIT', 0, LATEST_MAX)
end
local reply = {'ok', whole(now), cursor, newest, whole(#latest)}
for _, id in ipairs(latest) do reply[#reply + 1] = id end
reply[#reply + 1] = whole(#counters / 3)
for _, word in ipairs(counters) do reply[#reply + 1] = word end
append_differences(reply)
for _, word in ipairs(heads) do reply[#reply + 1] = word end
return reply
