-- Decides the requests of one group, in order, and gives the group's lock back, as
-- locking/lua/unlock.lua does.
--
-- ARGV
--   4 rev             what rev was before Postgres was read
--   5 token           the value of the group's locks, "" = there is none in this Redis
--   6 memory_ms       how long an answer and an ended hold are remembered
--   7 holds_per_user  live holds that one user may have on the resource
--   8 sweep_limit     holds that may be lapsed before the decision
--   9 read_at_ms      Redis' time before Postgres was read
--   10 read_age_ms    how old that may be: capacity may have been changed by others since, and a
--                     lock that is not in this Redis is trusted no longer
--   11 n              slots in the union; then n names, n capacities ("-" = no inventory row), n reserved
--   then 10 a request: id key cause fingerprint user quantity ttl_ms slots asked metadata
--   A late payment is such a request too: the fingerprint is "late", id is that of the hold that has
--   lapsed, cause the payment. Its answer is "word at_ms", never remembered as one; the word is claimed,
--   claimed_by_other, confirmed, already_confirmed (see claim.lua), sold_out or unknown_hold.
-- Returns, besides those of the prelude,
--   lock_lost slot  a lock is not the group's any more: nothing was decided
--   stale           rev has changed since Postgres was read, or that was too long ago: nothing was
--                   decided, the lock is kept
--   more            too many holds are due for one call: nothing was decided, the lock is kept
--   ok answer tail ...       two a request: the answer's line as it is remembered, and the tail of the
--                            hold's record when the line says created and was remembered before, else ""
-- An answer's line: word fingerprint cause at_ms detail asked metadata. The word `reused` is never remembered.

local rev, token, memory_ms = ARGV[4], ARGV[5], tonumber(ARGV[6])
local holds_per_user, sweep_limit = tonumber(ARGV[7]), tonumber(ARGV[8])
local read_at, read_age, n = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local FIXED_ARGS, REQUEST_ARGS, SCAN_MAX = 11, 10, 1000

local names, locks = {}, {}
for i = 1, n do
  names[i] = ARGV[FIXED_ARGS + i]
  locks[i] = prefix .. 'lock:' .. names[i]
end

if token ~= '' then
  for i, value in ipairs(redis.call('MGET', unpack(locks))) do
    if value ~= token then return {'lock_lost', names[i]} end
  end
end
local age = time[1] * 1000 + math.floor(time[2] / 1000) - read_at
if (redis.call('GET', REV) or '0') ~= rev or age < 0 or age > read_age then
  return {'stale'}
end
local swept, damage = sweep(sweep_limit, memory_ms)
if damage then return {'damaged', damage} end
if swept == sweep_limit then return {'more'} end

local capacity, reserved, held = {}, {}, {}
for i, count in ipairs(redis.call('HMGET', COUNTS, unpack(names))) do
  local name = names[i]
  capacity[name], reserved[name] = ARGV[FIXED_ARGS + n + i], ARGV[FIXED_ARGS + 2 * n + i]
  held[name] = tonumber(count or '0')
  if not held[name] or held[name] < 0 then return {'damaged', 'count of ' .. name} end
end

-- retry_at: the earliest deadline among live holds on one of the slots. The deadline index is
-- read once, in its order, and only as far as an answer needs (at most SCAN_MAX holds: past that
-- the last deadline seen is told, which is never too late). Holds granted by this very call are
-- not in what was read, so they are kept beside it.
local scanned, scan_at, first, granted = nil, 1, {}, {}
local function earliest(slots)
  local best
  for _, name in ipairs(slots) do
    for _, at in ipairs({first[name] or false, granted[name] or false}) do
      if at and (not best or at < best) then best = at end
    end
  end
  if not scanned then scanned = redis.call('ZRANGE', DUE, 0, SCAN_MAX - 1, 'WITHSCORES') end
  local wanted = {}
  for _, name in ipairs(slots) do wanted[name] = true end
  while scan_at < #scanned do
    local id, deadline = scanned[scan_at], tonumber(scanned[scan_at + 1])
    if best and best <= deadline then return best end
    scan_at = scan_at + 2
    local line = redis.call('HGET', RECORDS, id)
    local hold = line and parse(line)
    if hold then
      for _, name in ipairs(split(hold.slots)) do
        if not first[name] then
          first[name] = deadline
          if wanted[name] then best = deadline end
        end
      end
    end
    if best and best <= deadline then return best end
  end
  if not best and #scanned == 2 * SCAN_MAX then best = tonumber(scanned[#scanned]) end
  return best
end

-- Which slots have not enough left.
local function short_of(slots, quantity)
  local short = {}
  for _, name in ipairs(slots) do
    if held[name] + tonumber(reserved[name]) + quantity > tonumber(capacity[name]) then short[#short + 1] = name end
  end
  return short
end

-- What is short, as "retry_at_ms|slot:capacity:reserved:held,...", or nil.
local function shortage(slots, quantity)
  local short, lapse_helps = short_of(slots, quantity), true
  if #short == 0 then return nil end
  for _, name in ipairs(short) do
    if tonumber(reserved[name]) + quantity > tonumber(capacity[name]) then lapse_helps = false end
  end
  local retry_at = lapse_helps and earliest(short) or '-'
  local rows = {}
  for i, name in ipairs(short) do
    rows[i] = table.concat({name, capacity[name], reserved[name], held[name]}, ':')
  end
  return retry_at .. '|' .. table.concat(rows, ',')
end

local function refusal(user, quantity, slots_csv, slots)
  local existing = redis.call('GET', index_key(user, slots_csv))
  if existing then return 'already_holding', existing end
  if tonumber(redis.call('HGET', USERS, user) or '0') >= holds_per_user then return 'hold_limit', '-' end
  for _, name in ipairs(slots) do
    if capacity[name] == '-' then return 'unknown_resource', '-' end
  end
  local short = shortage(slots, quantity)
  if short then return 'sold_out', short end
  return nil
end

-- Counts what is taken of slots.
local function take(slots, quantity)
  local changes = {}
  for _, name in ipairs(slots) do
    held[name] = held[name] + quantity
    changes[#changes + 1] = name
    changes[#changes + 1] = held[name]
  end
  redis.call('HSET', COUNTS, unpack(changes))
end

-- Takes the slots of a lapsed hold again for a payment, if they are free.
local function take_late(id, payment, slots, quantity)
  local again = redis.call('HGET', RECORDS, late_id(id))
  if again then
    local hold = parse(again)
    if not hold then return nil, 'record of ' .. late_id(id) end
    return claim_word(hold, payment) .. ' ' .. hold.ended
  end
  local line = redis.call('HGET', RECORDS, id)
  local hold = line and parse(line)
  if line and not hold then return nil, 'record of ' .. id end
  if not hold then return 'unknown_hold ' .. now end
  for _, name in ipairs(slots) do
    if capacity[name] == '-' then return 'sold_out ' .. now end
  end
  if #short_of(slots, quantity) > 0 then return 'sold_out ' .. now end
  take(slots, quantity)
  redis.call('HINCRBY', USERS, hold.user, 1)
  hold.state, hold.ended, hold.by = 'confirming', now, payment
  redis.call('HSET', RECORDS, late_id(id), format(hold))
  return 'claimed ' .. now
end

local reply = {'ok'}
for base = FIXED_ARGS + 3 * n, #ARGV - 1, REQUEST_ARGS do
  local id, key, cause, fingerprint, user, quantity, ttl_ms, slots_csv, asked, metadata =
    unpack(ARGV, base + 1, base + REQUEST_ARGS)
  local request_key = prefix .. 'request:' .. key
  local line, tail = redis.call('GET', request_key), ''
  if fingerprint == 'late' then
    line, damage = take_late(id, cause, split(slots_csv), tonumber(quantity))
    if damage then return {'damaged', damage} end
  elseif line then
    local word, remembered, detail = string.match(line, '^(%S+) (%S+) %S+ %S+ (%S+)')
    if word == 'created' then
      local record = redis.call('HGET', RECORDS, string.match(detail, '^[^:]+'))
      local hold = record and parse(record)
      tail = hold and hold.tail or ''
    end
    if word ~= 'cancelled' and remembered ~= fingerprint then
      line, tail = 'reused', ''
    end
  else
    local slots = split(slots_csv)
    quantity, ttl_ms = tonumber(quantity), tonumber(ttl_ms)
    local word, detail = refusal(user, quantity, slots_csv, slots)
    if word then
      line = table.concat({word, fingerprint, cause, now, detail, asked, metadata}, ' ')
      redis.call('SET', request_key, line, 'PX', memory_ms)
    else
      local deadline = now + ttl_ms
      local hold = parse(table.concat(
        {'held', deadline, now, quantity, 0, '-', user, key, slots_csv, asked, metadata}, ' '))
      for _, name in ipairs(slots) do
        if not granted[name] or deadline < granted[name] then granted[name] = deadline end
      end
      take(slots, quantity)
      redis.call('HSET', RECORDS, id, format(hold))
      redis.call('HINCRBY', USERS, user, 1)
      redis.call('ZADD', DUE, deadline, id)
      redis.call('SET', index_key(user, slots_csv), id)
      show(id, hold)
      attend(deadline)
      line = table.concat({'created', fingerprint, cause, now, id .. ':' .. deadline, '-', ''}, ' ')
      redis.call('SET', request_key, line, 'PX', ttl_ms + memory_ms)
    end
  end
  reply[#reply + 1] = line
  reply[#reply + 1] = tail
end

if token ~= '' then
  redis.call('DEL', unpack(locks))
  redis.pcall('SPUBLISH', prefix .. 'released', table.concat(locks, ' '))
end
return reply
