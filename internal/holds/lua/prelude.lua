-- The common part of all scripts. scripts.go puts it in front of each script. Each script calls
-- begin at the start of each call, because several calls share one run (see internal/lua).
--
-- KEYS  1 epoch of the partition. All other keys of a script have the same hash tag.
-- ARGV
--   1 epoch     the epoch that the partition must have, then, if it is known, an @ and the
--               replication history that the server must have
--   2 resource  id of the resource, also its member of the agenda
--   3 prefix    prefix of the keys of the resource
-- Returns {status, ...}. The status is one word:
--   ok       done; the reply follows
--   lost     the epoch is missing or different, or the server has another history: Redis lost data.
--            Nothing was read or written.
--   corrupt  a value is not one that the scripts write. A description of it follows. Nothing of that
--            hold was written.
--
-- READS says whether the script has the flag no-writes; scripts.go sets it.
--
-- The scripts start with a shebang. So a Redis that is read-only or cannot persist refuses them
-- before their first command, not after some of their writes. The same holds for a Redis that is
-- out of memory, unless the script has the flag allow-oom.

local EPOCH, AGENDA, COUNTS, USERS, RECORDS, DUE
local resource, prefix
local epoch -- of the partition
local term, term_epoch, term_history, term_clock -- the last ARGV[1] and its parts
local verified -- the history that the run has found on this server
local time_ms, now, now_text -- of the run; now is Redis' time, unless a test moves it
local sweep_budget -- holds that the run may still expire

-- Formats a whole number. The conversions of Redis and Lua are slower, because they handle
-- fractions.
local function int(number) return string.format('%d', number) end

-- How long a script that writes may rely on an earlier check of the server, in ms.
local PRIMARY_MS = 500

-- Reports whether this server is a primary with a history. A script checks this in the same step in
-- which it uses the data, because a server may follow a primary with older data and the same epoch,
-- and become primary again between two checks of the supervisor, with all connections open.
--
-- INFO costs as much as three or four other commands. So a script that writes leaves a mark, the
-- history and the current half-second, and the scripts of that half-second rely on it. The mark is
-- not replicated. So a server that takes over the data of another one also loses its mark, unless
-- the other one has copied all data, with the mark, in the same half-second. Then this server would
-- have to copy all data back and become primary within that half-second, too. A server that follows
-- another one refuses scripts that write; scripts that only read always ask INFO.
--
-- A server that begins a new history by itself is refused until the supervisor has checked it.
local function is_primary(history)
  if verified == history then return true end
  local key, mark = string.sub(EPOCH, 1, -6) .. 'primary', history .. ' ' .. math.floor(now / PRIMARY_MS)
  if READS or redis.pcall('GET', key) ~= mark then
    local info = redis.call('INFO', 'replication')
    local is = string.find(info, 'role:master', 1, true) and string.match(info, 'master_replid:(%x+)') == history
    if not is then return false end
    if not READS then
      redis.set_repl(redis.REPL_NONE)
      redis.call('SET', key, mark)
      redis.set_repl(redis.REPL_ALL)
    end
  end
  verified = history
  return true
end

-- Sets the variables of a call from its KEYS and ARGV. Returns whether the partition has the epoch
-- and all data that was written under it, and the values of other keys, from the second value on:
-- the first is the epoch.
local function begin(KEYS, ARGV, ...)
  resource, prefix = ARGV[2], ARGV[3]
  COUNTS, USERS, RECORDS, DUE = prefix .. 'counts', prefix .. 'users', prefix .. 'records', prefix .. 'due'
  local values
  if ... then
    values = redis.call('MGET', KEYS[1], ...)
    epoch = values[1]
  end
  if EPOCH ~= KEYS[1] then
    -- First: if the epoch is not a string, this fails, and must fail again in the next call. EPOCH still names
    -- the partition of the call before.
    if not values then epoch = redis.call('GET', KEYS[1]) end
    EPOCH = KEYS[1]
    AGENDA = string.sub(EPOCH, 1, -6) .. 'agenda'
  end
  if term ~= ARGV[1] then
    term = ARGV[1]
    term_epoch, term_history, term_clock = string.match(term, '^([^@]*)@?([^@]*)@?(%d*)$')
  end
  if not now then
    local time = redis.call('TIME')
    time_ms = time[1] * 1000 + math.floor(time[2] / 1000)
    now = tonumber(term_clock or '') or time_ms
    now_text = int(now)
  end
  return epoch == term_epoch and (term_history == '' or is_primary(term_history)), values
end

-- Calls begin for a payment. Returns how often Postgres was compared after it may have lost commits, or nil when begin
-- returns false.
local function begin_payment(KEYS, ARGV)
  local intact, values = begin(KEYS, ARGV, string.sub(KEYS[1], 1, -6) .. 'compared')
  return intact and (values[2] or '0') or nil
end

-- Parses a record. A record is one line of words, each separated by one space:
--   state deadline_ms created_ms quantity ended_ms by user request_key slots asked metadata
-- by is the payment of a claimed or confirmed hold, the event id of a released one, otherwise "-".
-- The words from user on are the tail: they never change. No word may be added, because workers of
-- different versions read the same records.
--
-- The slots that a late payment has taken again are a second record, late:<id>. It is confirming or
-- confirmed. It has no request and no index, and no limit of the user applies to it. The hold <id>
-- itself stays expired.
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

-- Returns the slots of a record, "" when parse cannot read it or there is none. It costs a third of parse.
local function slots_in(line)
  return string.match(line or '', '^%a+ %d+ %d+ %d+ %d+ %S+ %S+ %S+ (%S+) %S+ ') or ''
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

-- Returns the field of USERS with the id of the user's live hold on exactly these slots. It
-- contains a space, unlike a user id, which is the field with the number of the user's live holds.
local function index_field(user, slots) return user .. ' ' .. redis.sha1hex(slots) end

-- Returns the key that exists when the payment of a hold was started. It lasts longer than the hold.
local function started_key(id) return prefix .. 'started:' .. id end

-- Sets the key of a live hold. Its expiry is the hint to sweep the resource. Its value is the
-- deadline, because Redis stores a number in few bytes.
local function set_hold_key(id, deadline)
  redis.call('SET', prefix .. 'hold:' .. id, deadline, 'PXAT', deadline)
end

local function schedule(at)
  redis.call('ZADD', AGENDA, 'LT', at, resource)
end

local function late_id(id) return 'late:' .. id end
local function is_late(id) return string.sub(id, 1, 5) == 'late:' end

-- Returns the word for a payment of a hold that this or another payment has claimed.
local function claim_word(hold, payment)
  if hold.state == 'confirming' then return hold.by == payment and 'claimed' or 'claimed_by_other' end
  return hold.by == payment and 'confirmed' or 'already_confirmed'
end

-- Reports whether a field of USERS is a number of live holds, or does not exist.
local function is_count(field) return not field or string.match(field, '^%-?%d+$') ~= nil end

-- Reports whether a hold is live, by other keys than the counts. Each live hold is counted in USERS, and is in DUE unless it
-- is claimed. The script that ends the last one removes both together with the last count. An index field may be left over.
local function has_live()
  if redis.call('EXISTS', DUE) == 1 then return true end
  local some = redis.call('HSCAN', USERS, 0, 'COUNT', 1000)[2]
  for i = 1, #some, 2 do
    if not string.find(some[i], ' ', 1, true) then return true end
  end
  return false
end

-- Reads what live holds take of slots. Returns a number for each slot, or nil and what is corrupt: a missing key beside live
-- holds does not mean zero.
local function read_held(...)
  local held, some = redis.call('HMGET', COUNTS, ...), false
  for i, found in ipairs(held) do
    local count = tonumber(found or 0)
    if not count or count < 0 or count % 1 ~= 0 then return nil, 'count of ' .. select(i, ...) end
    held[i], some = count, some or found
  end
  if not some and redis.call('EXISTS', COUNTS) == 0 and has_live() then
    return nil, 'missing counts'
  end
  return held
end

-- Values that unpack passes to one command. It fails near 8,000.
local VALUES_MAX = 1000

-- Returns the values of some fields of a hash, by field: false when the hash does not have it.
local function read_fields(key, fields)
  local values = {}
  for first = 1, #fields, VALUES_MAX do
    local last = math.min(first + VALUES_MAX - 1, #fields)
    for i, value in ipairs(redis.call('HMGET', key, unpack(fields, first, last))) do
      values[fields[first + i - 1]] = value
    end
  end
  return values
end

-- Sets fields of a hash to numbers. A field with the number 0 is removed.
local function write_numbers(key, numbers)
  local keep, drop = {}, {}
  for field, number in pairs(numbers) do
    if number > 0 then
      keep[#keep + 1], keep[#keep + 2] = field, int(number)
    else
      drop[#drop + 1] = field
    end
  end
  for i = 1, #keep, VALUES_MAX do
    redis.call('HSET', key, unpack(keep, i, math.min(i + VALUES_MAX - 1, #keep)))
  end
  for i = 1, #drop, VALUES_MAX do
    redis.call('HDEL', key, unpack(drop, i, math.min(i + VALUES_MAX - 1, #drop)))
  end
end

-- Reads the counts of the slots and of the users of some holds, each once, and the index of these holds.
local function read_counts(holds)
  local slots, users, read = {}, {}, {}
  for _, hold in ipairs(holds) do
    hold.names, hold.index = split(hold.slots), index_field(hold.user, hold.slots)
    users[#users + 1], users[#users + 2] = hold.user, hold.index
  end
  if #holds == 1 then return read_fields(COUNTS, holds[1].names), read_fields(USERS, users) end
  for _, hold in ipairs(holds) do
    for _, name in ipairs(hold.names) do
      if not read[name] then
        read[name] = true
        slots[#slots + 1] = name
      end
    end
  end
  return read_fields(COUNTS, slots), read_fields(USERS, users)
end

-- Returns what is corrupt of the counts of a hold, or nil.
local function corrupt_count(hold, held, of_users)
  for _, name in ipairs(hold.names) do
    local count = tonumber(held[name] or '')
    if not count or count < hold.quantity or count % 1 ~= 0 then return 'count of ' .. name end
  end
  return not is_count(of_users[hold.user]) and 'count of a user' or nil
end

-- Ends live holds: restores their counts, removes everything that only a live hold has, and adds the holds to set:
-- departing, tombstones, or nil for neither. The caller has read the state held or confirming in the same script, so a
-- hold ends only once. Returns nil, or what is corrupt of one of them; then nothing of that hold was written, and its
-- state is the same. The holds share one read and one write of each hash: those of long stays have many slots in common.
local function end_holds(ids, holds, state, ended, by, memory_ms, set)
  local held, of_users = read_counts(holds)
  local at = set == 'departing' and now or now + memory_ms
  local counts, users, due, entries, keys, requests, records, corrupt = {}, {}, {}, {}, {}, {}, {}, nil
  for i, hold in ipairs(holds) do
    local id, found_corrupt = ids[i], corrupt_count(hold, held, of_users)
    if found_corrupt then
      corrupt = found_corrupt
    else
      for _, name in ipairs(hold.names) do
        local count = held[name] - hold.quantity
        held[name], counts[name] = count, count
      end
      local live = math.max(tonumber(of_users[hold.user] or 0) - 1, 0)
      of_users[hold.user], users[hold.user] = live, live
      if of_users[hold.index] == id then users[hold.index] = 0 end
      if hold.state == 'held' then due[#due + 1] = id end -- a claimed hold is not due
      if not is_late(id) then
        keys[#keys + 1], keys[#keys + 2] = prefix .. 'hold:' .. id, started_key(id)
        requests[#requests + 1] = prefix .. 'request:' .. hold.request_key
      end
      entries[#entries + 1], entries[#entries + 2] = at, id
      hold.state, hold.ended, hold.by = state, ended, by
      records[#records + 1], records[#records + 2] = id, format(hold)
    end
  end
  if #records == 0 then return corrupt end

  -- No write can fail with a wrong type after the first: each other key has been read. An agenda that has a resource too
  -- early does no harm.
  if set then schedule(at) end
  if #due > 0 then
    if set then redis.call('ZCARD', prefix .. set) end
    redis.call('ZREM', DUE, unpack(due))
  end
  if set then redis.call('ZADD', prefix .. set, unpack(entries)) end
  write_numbers(COUNTS, counts)
  write_numbers(USERS, users)
  if #keys > 0 then redis.call('DEL', unpack(keys)) end
  for _, request_key in ipairs(requests) do redis.call('PEXPIRE', request_key, memory_ms) end
  redis.call('HSET', RECORDS, unpack(records))
  return corrupt
end

-- Ends one live hold, as end_holds.
local function end_hold(id, hold, state, ended, by, memory_ms, set)
  return end_holds({id}, {hold}, state, ended, by, memory_ms, set)
end

-- TTL of rev after a change. It is far longer than readAge, the maximum age of a read of Postgres.
local REV_MS = '3600000'

-- Counts a change of capacity or reserved, so that a decision on an earlier read of Postgres is
-- refused. rev expires an hour after the last change. A new rev begins with the time in
-- microseconds, so that it differs from every earlier one; a missing rev counts as 0, see rowCache.
-- Returns whether rev is corrupt; then nothing was written.
local function bump_rev()
  local rev = prefix .. 'rev'
  local value = redis.pcall('INCR', rev)
  if type(value) == 'table' then return true end
  if value == 1 then
    redis.call('SET', rev, int(time_ms * 1000), 'PX', REV_MS)
  else
    redis.call('PEXPIRE', rev, REV_MS)
  end
  return false
end

-- Expires a hold: it is in departing until its hold.expired is announced. Returns nil, or what is corrupt; then nothing was
-- written.
local function expire(id, hold, memory_ms)
  return end_hold(id, hold, 'expired', now, '-', memory_ms, 'departing')
end

-- Expires the holds that are due, at most limit in all calls of a run. Returns whether more may be
-- due, what is corrupt or nil, and the earliest deadline of the resource, nil when it is not known.
-- A corrupt hold stays due, so that each sweep reports it until it is repaired. The other holds are
-- expired nevertheless.
local function sweep(limit, memory_ms)
  local first = tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2])
  if not first or first > now then return false, nil, first end
  sweep_budget = sweep_budget or limit
  if sweep_budget == 0 then return true end
  local ids = redis.call('ZRANGE', DUE, '-inf', now, 'BYSCORE', 'LIMIT', 0, sweep_budget)
  local corrupt
  local stray, due_ids, due_holds = {}, {}, {} -- stray: in DUE, but not held
  for i, line in ipairs(redis.call('HMGET', RECORDS, unpack(ids))) do
    local id, hold = ids[i], line and parse(line)
    if line and not hold then
      corrupt = 'record of ' .. id
    elseif not hold or hold.state ~= 'held' then
      stray[#stray + 1] = id
    elseif hold.deadline > now then
      redis.call('ZADD', DUE, hold.deadline, id)
      sweep_budget = sweep_budget - 1
    else
      due_ids[#due_ids + 1], due_holds[#due_holds + 1] = id, hold
    end
  end
  if #stray > 0 then redis.call('ZREM', DUE, unpack(stray)) end
  corrupt = end_holds(due_ids, due_holds, 'expired', now, '-', memory_ms, 'departing') or corrupt
  for _, hold in ipairs(due_holds) do
    if hold.state == 'expired' then sweep_budget = sweep_budget - 1 end
  end
  sweep_budget = sweep_budget - #stray
  return sweep_budget == 0, corrupt
end
