-- Decides the requests of one group, in order, and releases the group's lock as
-- locking/lua/unlock.lua does.
--
-- ARGV
--   4 rev             value of rev before Postgres was read
--   5 memory_ms       how long an answer and an ended hold are remembered
--   6 holds_per_user  maximum number of live holds of one user on the resource
--   7 sweep_limit     maximum number of holds to expire before the decision
--   8 read_at_ms      Redis' time before Postgres was read
--   9 read_age_ms     maximum age of that read. After it capacity may have changed unnoticed, and a
--                     lock on other servers may no longer be valid
--   10 token          value of the group's locks; "" when this Redis has no locks; "*" when the call
--                     itself takes and releases the locks in its one step
--   11 inventory      capacity:reserved,... for each slot in the union of the requests
--   12 n  13 k        number of slots in the union, number of requests
--   then k request keys
--   then n names of slots
--   then 2 for each request: its user and its index_field (see the prelude)
--   then n numbers: capacity minus reserved, "-" for a slot without an inventory row
--   then 8 for each request: kind id event_id fingerprint quantity ttl_ms slots tail
--     kind is request or late; slots are runs of positions in the union, from:to,...; tail is the tail
--     of the hold's record
--   The kind late is a late payment: id is the expired hold, event_id the payment. Its answer is
--   "word at_ms" and is not remembered. The word is claimed, claimed_by_other, confirmed or
--   already_confirmed (see claim.lua), sold_out or unknown_hold.
-- Returns one of these, or a common reply of the prelude:
--   lock_lost slot  the group no longer holds the lock of a slot: nothing was decided
--   blocked slot    another owner holds the lock of a slot (only with the token "*"): nothing was decided
--   stale           rev has changed since Postgres was read, or the read is too old: nothing was decided,
--                   the lock is kept
--   more            more holds are due than one call expires: nothing was decided, the lock is kept
--   ok answer tail ...  two for each request: the line of the answer, and the tail of the hold's record if
--                       an earlier call created the hold, otherwise ""
-- The line of an answer is: word fingerprint cause at_ms detail asked metadata. cause is the event
-- id. The word reused stands alone and is not remembered.

local FIXED_ARGS, REQUEST_ARGS, SCAN_MAX, SCAN_MIN = 13, 8, 1000, 32
local KIND, ID, EVENT_ID, FINGERPRINT, QUANTITY, TTL_MS, SLOTS, TAIL = 1, 2, 3, 4, 5, 6, 7, 8
local RUNS = '(%d+):(%d+)'

-- The arguments of the current call, and the positions before its names and before its first
-- request.
local args, name_at, request_at
local holds_per_user
local held -- by slot
local inventory -- capacity:reserved by slot, split when it is first needed
local left -- by slot, false without an inventory row
-- The positions of the current request's slots, their number, and the runs that they were read from.
local slots, num_slots, slots_of = {}, 0, nil
-- What is written at the end: fields of USERS; ids and lines; deadlines and ids.
local of_users, records, deadlines
-- The runs of slots and the deadlines of the holds that this call has granted.
local granted, granted_until
-- The last TTL, and what follows from it: the deadline, its text, and how long to remember the
-- answer.
local last_ttl, deadline_ms, deadline, memory_ms

local function record(id)
  for i = 1, #records, 2 do
    if records[i] == id then return records[i + 1] end
  end
  return redis.call('HGET', RECORDS, id)
end

-- Reports whether a hold is live. A hold with a corrupt record counts as live.
local function is_live(id)
  local line = record(id)
  local hold = line and parse(line)
  return line and not hold or hold and (hold.state == 'held' or hold.state == 'confirming')
end

local function read_slots(runs)
  if runs == slots_of then return end -- often those of the call before: a request alone in its group has the runs 1:n
  slots_of, num_slots = runs, 0
  for from, to in string.gmatch(runs, RUNS) do
    for i = from, to do
      num_slots = num_slots + 1
      slots[num_slots] = i
    end
  end
end

-- Adds a hold on the slots to the counts of the slots and of its user.
local function take(quantity, user, count)
  for j = 1, num_slots do held[slots[j]] = held[slots[j]] + quantity end
  of_users[user] = int((count or 0) + 1)
end

-- Returns the earliest deadline of a live hold on one of the slots, which becomes retry_at. It
-- reads the deadlines once, in their order, and examines only as many as an answer needs. After
-- SCAN_MAX holds in all calls of a run, and SCAN_MIN in this one, it returns no later deadline than the last that it has
-- read, which is never too late. The holds granted by this call are not in DUE yet, so they are examined separately.
local scan_left = SCAN_MAX
local scanned, scan_at, first, cut
local function earliest(short)
  if not scanned then
    local most = math.max(scan_left, SCAN_MIN)
    scanned, scan_at, first = redis.call('ZRANGE', DUE, 0, most - 1, 'WITHSCORES'), 1, {}
    cut = #scanned == 2 * most and tonumber(scanned[#scanned]) -- more holds may follow
  end
  local best
  local wanted = {}
  for _, i in ipairs(short) do
    local name = args[name_at + i]
    wanted[name] = true
    local at = first[name]
    if at and (not best or at < best) then best = at end
  end
  for k, runs in ipairs(granted) do
    local deadline = granted_until[k]
    for from, to in string.gmatch(runs, RUNS) do
      for i = from, to do
        if wanted[args[name_at + i]] and (not best or deadline < best) then best = deadline end
      end
    end
  end
  while scan_at < #scanned do
    local id, deadline = scanned[scan_at], tonumber(scanned[scan_at + 1])
    if best and best <= deadline then return best end
    scan_at, scan_left = scan_at + 2, scan_left - 1
    for name in string.gmatch(slots_in(redis.call('HGET', RECORDS, id)), '[^,]+') do
      if not first[name] then
        first[name] = deadline
        if wanted[name] then best = deadline end
      end
    end
    if best and best <= deadline then return best end
  end
  if cut and (not best or cut < best) then best = cut end
  return best
end

-- Returns whether all slots have an inventory row, and the positions of those that have not enough
-- left, nil when all have enough.
local function short_of(quantity)
  local short
  for j = 1, num_slots do
    local i = slots[j]
    if not left[i] then return false end
    if held[i] + quantity > left[i] then
      short = short or {}
      short[#short + 1] = i
    end
  end
  return true, short
end

-- Returns the detail of sold_out: "retry_at_ms|slot:capacity:reserved:held,...".
local function shortage(short, quantity)
  inventory = inventory or split(args[11])
  local rows, expiry_helps = {}, true
  for k, i in ipairs(short) do
    if quantity > left[i] then expiry_helps = false end
    rows[k] = args[name_at + i] .. ':' .. inventory[i] .. ':' .. int(held[i])
  end
  local retry_at = expiry_helps and earliest(short)
  return (retry_at and int(retry_at) or '-') .. '|' .. table.concat(rows, ',')
end

-- Returns the word and the detail of a refusal, nil when the request can be granted.
local function refusal(existing, count, quantity)
  if existing and is_live(existing) then return 'already_holding', existing end
  if count and tonumber(count) >= holds_per_user then return 'hold_limit', '-' end
  local sold, short = short_of(quantity)
  if not sold then return 'unknown_resource', '-' end
  if short then return 'sold_out', shortage(short, quantity) end
  return nil
end

-- Takes the slots of an expired hold again for a late payment, if they are free. Returns the
-- answer, or nil and what is corrupt.
local function take_late(r, user, count)
  local id, payment, quantity = args[r + ID], args[r + EVENT_ID], tonumber(args[r + QUANTITY])
  local late_line = record(late_id(id))
  if late_line then
    local hold = parse(late_line)
    if not hold then return nil, 'record of ' .. late_id(id) end
    return claim_word(hold, payment) .. ' ' .. int(hold.ended)
  end
  local line = record(id)
  local hold = line and parse(line)
  if line and not hold then return nil, 'record of ' .. id end
  if not hold then return 'unknown_hold ' .. now_text end
  local sold, short = short_of(quantity)
  if not sold or short then return 'sold_out ' .. now_text end
  take(quantity, user, count)
  hold.state, hold.ended, hold.by = 'confirming', now, payment
  records[#records + 1] = late_id(id)
  records[#records + 1] = format(hold)
  return 'claimed ' .. now_text
end

-- Sets what follows from the TTL of a request. Most requests have the same TTL.
local function read_ttl(ttl)
  if ttl == last_ttl then return end
  last_ttl, deadline_ms, memory_ms = ttl, now + ttl, int(args[5] + ttl)
  deadline = int(deadline_ms)
end

-- Grants a hold and returns the answer's line.
local function grant(r, user, count, index, quantity)
  read_ttl(args[r + TTL_MS])
  local id, n = args[r + ID], #granted + 1
  take(quantity, user, count)
  of_users[index] = id
  granted[n], granted_until[n] = args[r + SLOTS], deadline_ms
  deadlines[2 * n - 1], deadlines[2 * n] = deadline, id
  n = #records
  records[n + 1] = id
  records[n + 2] = 'held ' .. deadline .. ' ' .. now_text .. ' ' .. args[r + QUANTITY] .. ' 0 - ' .. args[r + TAIL]
  local detail = id .. ':' .. deadline
  return 'created ' .. args[r + FINGERPRINT] .. ' ' .. args[r + EVENT_ID] .. ' ' .. now_text .. ' ' .. detail .. ' - '
end

-- Returns the position of the first name whose lock does not have the token or, with the token "*",
-- is held by any owner. Returns nil when there is none.
local function first_foreign(token, ...)
  local checked
  local fields = redis.pcall('HMGET', prefix .. 'locks', ...)
  if fields.err then
    if string.sub(fields.err, 1, 9) ~= 'WRONGTYPE' then error(fields) end
    return 1 -- lock.lua then deletes what is not a hash
  end
  for i, field in ipairs(fields) do
    if field ~= checked then -- most fields are equal
      local value, until_ms = string.match(field or '', '^(%S+) (%d+)$')
      local live = value and tonumber(until_ms) > time_ms
      if token == '*' and live or token ~= '*' and not (live and value == token) then return i end
      checked = field
    end
  end
  return nil
end

local function run(KEYS, ARGV)
  local token, n, num_requests = ARGV[10], ARGV[12] + 0, ARGV[13] + 0
  args, name_at = ARGV, FIXED_ARGS + num_requests
  -- The values are the epoch, rev and the answers. A sweep changes none of them.
  local intact, values = begin(KEYS, ARGV, ARGV[3] .. 'rev', unpack(ARGV, FIXED_ARGS + 1, name_at))
  if not intact then return {'lost'} end
  -- Due holds expire even if nothing is decided.
  local more, corrupt, first_due = sweep(ARGV[7] + 0, ARGV[5])
  if corrupt then return {'corrupt', corrupt} end
  if more then return {'more'} end

  -- All reads come before the first decision and all writes after the last one. So corruption never
  -- leaves a decision half written.
  local left_at = name_at + n + 2 * num_requests
  request_at = left_at + n
  -- In most cases there are no locks, and only new requests. MGET returns nil for a key of another
  -- type, too. GET of such a key fails.
  local absent = {}
  if not values[2] then absent[1] = prefix .. 'rev' end
  for k = 1, num_requests do
    if not values[2 + k] then absent[#absent + 1] = ARGV[FIXED_ARGS + k] end
  end
  local num_absent = #absent
  if token == '*' then absent[num_absent + 1] = prefix .. 'locks' end
  local found = #absent > 0 and redis.call('EXISTS', unpack(absent)) > 0
  if found and token == '*' or token ~= '' and token ~= '*' then
    local i = first_foreign(token, unpack(ARGV, name_at + 1, name_at + n))
    if i then return {token == '*' and 'blocked' or 'lock_lost', ARGV[name_at + i]} end
  end
  if not string.match(ARGV[4], '^%-?%d+$') then return {'corrupt', 'rev'} end -- no script can bump it
  if found then
    for k = 1, num_absent do redis.call('GET', absent[k]) end
  end
  local age = time_ms - ARGV[8]
  if (values[2] or '0') ~= ARGV[4] or age < 0 or age > ARGV[9] + 0 then return {'stale'} end
  held, corrupt = read_held(unpack(ARGV, name_at + 1, name_at + n))
  if corrupt then return {'corrupt', corrupt} end
  left = {}
  for i = 1, n do left[i] = ARGV[left_at + i] ~= '-' and ARGV[left_at + i] + 0 end
  local users_at = name_at + n
  local users = redis.call('HMGET', USERS, unpack(ARGV, users_at + 1, left_at))
  for u = 1, 2 * num_requests, 2 do
    if not is_count(users[u]) then return {'corrupt', 'count of a user'} end
  end
  of_users, records, deadlines, granted, granted_until = {}, {}, {}, {}, {}
  holds_per_user, scanned, last_ttl, inventory = ARGV[6] + 0, nil, nil, nil

  local known, new = {}, {} -- new answers by key; by request the word of a new refusal, or granted
  local reply = {'ok', '', ''}
  for k = 1, num_requests do
    local r, u = request_at + (k - 1) * REQUEST_ARGS, 2 * k - 1
    local user, index = ARGV[users_at + u], ARGV[users_at + u + 1]
    local count, existing = of_users[user] or users[u], of_users[index] or users[u + 1]
    local key, tail = ARGV[FIXED_ARGS + k], ''
    local line = known[key] or values[2 + k]
    if ARGV[r + KIND] == 'late' then
      read_slots(ARGV[r + SLOTS])
      line, corrupt = take_late(r, user, count)
      if corrupt then return {'corrupt', corrupt} end
    elseif line then
      local word, remembered, detail = string.match(line, '^(%S+) (%S+) %S+ %S+ (%S+)')
      local id = string.match(detail or '', '^[^:]+')
      if not id then return {'corrupt', 'answer to ' .. string.sub(key, #prefix + 1)} end -- a rebuild writes it again
      local same = remembered == '-' or remembered == ARGV[r + FINGERPRINT]
      if word == 'created' then
        local hold_line = record(id)
        local hold = hold_line and parse(hold_line)
        tail = hold and hold.tail or ''
        if hold and remembered == '-' then same = index_field(hold.user, hold.slots) == index end
      end
      -- The fingerprint "-" stands for any content that the record does not contradict. A rebuild writes it when it
      -- does not know the content.
      if word ~= 'cancelled' and not same then
        line, tail = 'reused', ''
      end
    else
      local quantity = ARGV[r + QUANTITY] + 0
      read_slots(ARGV[r + SLOTS])
      local word, detail = refusal(existing, count, quantity)
      if word then
        local echo = string.match(ARGV[r + TAIL], '^%S+ %S+ %S+ (.*)$') -- selection and metadata
        line = table.concat({word, ARGV[r + FINGERPRINT], ARGV[r + EVENT_ID], now_text, detail, echo}, ' ')
      else
        line = grant(r, user, count, index, quantity)
      end
      known[key], new[k] = line, word or 'granted'
    end
    reply[2 * k], reply[2 * k + 1] = line, tail
  end

  -- The agenda has a resource no later than its earliest deadline.
  local earlier
  for _, at in ipairs(granted_until) do
    if not first_due or at < first_due then first_due, earlier = at, true end
  end
  if earlier then schedule(int(first_due)) end
  if #records > 0 then
    redis.call('HSET', RECORDS, unpack(records)) -- first: if it is not a hash, nothing else is written
    local counts, c = {'', '', '', '', '', ''}, 0 -- preallocated for most groups
    for i = 1, n do
      if held[i] > 0 then
        counts[c + 1], counts[c + 2] = ARGV[name_at + i], int(held[i])
        c = c + 2
      end
    end
    redis.call('HSET', COUNTS, unpack(counts, 1, c))
    local fields, f = {'', '', '', ''}, 0
    for field, value in pairs(of_users) do
      fields[f + 1], fields[f + 2] = field, value
      f = f + 2
    end
    redis.call('HSET', USERS, unpack(fields, 1, f))
    if #deadlines > 0 then redis.call('ZADD', DUE, unpack(deadlines)) end
  end
  for k = 1, num_requests do
    local key = ARGV[FIXED_ARGS + k]
    if new[k] == 'granted' then
      local r = request_at + (k - 1) * REQUEST_ARGS
      read_ttl(ARGV[r + TTL_MS])
      set_hold_key(ARGV[r + ID], deadline)
      redis.call('SET', key, reply[2 * k], 'PX', memory_ms)
    elseif new[k] then
      redis.call('SET', key, reply[2 * k], 'PX', ARGV[5])
    end
  end
  if token ~= '' and token ~= '*' then
    redis.call('HDEL', prefix .. 'locks', unpack(ARGV, name_at + 1, name_at + n))
    if redis.call('EXISTS', prefix .. 'waited_for') == 1 then
      redis.pcall('SPUBLISH', prefix .. 'released', table.concat(ARGV, ' ', name_at + 1, name_at + n))
    end
  end
  return reply
end
