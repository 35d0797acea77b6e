-- Writes the data of a resource, or parts of it. The caller has computed it (projection_plan.go and
-- projection_fold.go), so a repeated call changes nothing.
--
-- ARGV  1 the mark of the partition during the rebuild (swap.lua): after another rebuilder has taken over, the
--         partition has another mark, and the script writes nothing
--       4 time of the resource in the agenda (ms, "" when it needs none)
--       then sections: name n, and n values, at most 3,000:
--         folds                      names and lines, each added to the lines under that name
--         records                    4 for each: id, line, the sorted set that the id belongs to (due, departing or
--                                    tombstones, "" for none) and its time there (ms); live holds are added to the
--                                    counts, the users and the index
--         answers                    suffixes, lines and expiry times (ms, 0 when there is none), see is_newer
--         expiring                   suffixes, values and expiry times (ms)
--         fence                      of the partition: the base of its fencing tokens, unless the stored one is higher
-- Returns ok now, and the number of answers that were missing

local FIRST = 5
local PAGE = 1000 -- fields of one command; unpack fails near 8,000 values

-- Adds lines to the folds. A line that a fold has is not added again.
local function add_folds(values, first, last)
  local names, lines = {}, {}
  for j = first, last, 2 do names[#names + 1], lines[#lines + 1] = values[j], values[j + 1] end
  local fields, found = {}, redis.call('HMGET', prefix .. 'fold', unpack(names))
  for i, name in ipairs(names) do
    local old = found[i]
    if not old or not string.find(old, lines[i], 1, true) then
      fields[#fields + 1] = name
      fields[#fields + 1] = old and old .. '\n' .. lines[i] or lines[i]
    end
  end
  if #fields == 0 then return end
  redis.call('HSET', prefix .. 'fold', unpack(fields))
  redis.call('ZADD', string.sub(EPOCH, 1, -6) .. 'folds', 0, resource)
end

-- Calls merge with each name of a table, its value and the field that a hash has, and stores what it returns.
local function merge_fields(key, values, merge)
  local names = {}
  for name in pairs(values) do names[#names + 1] = name end
  for first = 1, #names, PAGE do
    local last = math.min(first + PAGE - 1, #names)
    local fields, found = {}, redis.call('HMGET', key, unpack(names, first, last))
    for i = first, last do
      fields[#fields + 1] = names[i]
      fields[#fields + 1] = merge(found[i - first + 1], values[names[i]])
    end
    redis.call('HSET', key, unpack(fields))
  end
end

local function sum(old, number) return int(tonumber(old or '0') + number) end

-- A user with two holds on the same slots should not exist. The index then names the older hold.
local function older(old, id) return old and old < id and old or id end

-- Writes the records that are missing, and adds their live holds to the sums: so a repeated call adds nothing.
local function add_records(values, first, last)
  local ids, sets, fields, counts, users, index = {}, {}, {}, {}, {}, {}
  for j = first, last, 4 do ids[#ids + 1] = values[j] end
  local found = redis.call('HMGET', RECORDS, unpack(ids))
  for i, id in ipairs(ids) do
    local line, set, time = unpack(values, first + 4 * i - 3, first + 4 * i - 1)
    if set ~= '' then
      local times = sets[set] or {}
      sets[set] = times
      times[#times + 1] = time
      times[#times + 1] = id
    end
    local hold = not found[i] and parse(line)
    if hold then
      fields[#fields + 1] = id
      fields[#fields + 1] = line
      if hold.state == 'held' or hold.state == 'confirming' then
        for _, slot in ipairs(split(hold.slots)) do counts[slot] = (counts[slot] or 0) + hold.quantity end
        users[hold.user] = (users[hold.user] or 0) + 1
        local field = index_field(hold.user, hold.slots)
        index[field] = older(index[field], id)
      end
    end
  end
  merge_fields(COUNTS, counts, sum)
  merge_fields(USERS, users, sum)
  merge_fields(USERS, index, older)
  if #fields > 0 then redis.call('HSET', RECORDS, unpack(fields)) end
  for set, times in pairs(sets) do redis.call('ZADD', prefix .. set, unpack(times)) end
end

-- Reports whether an answer replaces the stored one: the later of two does, and of two of the same time the one
-- whose first event is known. The same answer gets its new expiry time.
local function is_newer(line, old)
  if not old or old == line then return true end
  local event, at = string.match(old, '^%S+ %S+ (%S+) (%d+)')
  local new_at = tonumber(string.match(line, '^%S+ %S+ %S+ (%d+)'))
  return not at or new_at > tonumber(at) or new_at == tonumber(at) and event == '-'
end

-- Returns 1 when there was no answer, else 0.
local function set_answer(key, line, expires)
  if expires ~= '0' and tonumber(expires) <= now then return 0 end
  local old = redis.call('GET', key)
  if not is_newer(line, old) then return 0 end
  if expires == '0' then redis.call('SET', key, line) else redis.call('SET', key, line, 'PXAT', expires) end
  return old and 0 or 1
end

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local i, answers = FIRST, 0
  while i <= #ARGV do
    local name, first, last = ARGV[i], i + 2, i + 1 + tonumber(ARGV[i + 1])
    if name == 'folds' then
      add_folds(ARGV, first, last)
    elseif name == 'records' then
      add_records(ARGV, first, last)
    elseif name == 'answers' then
      for j = first, last, 3 do answers = answers + set_answer(prefix .. ARGV[j], ARGV[j + 1], ARGV[j + 2]) end
    elseif name == 'fence' then
      -- A worker that has not noticed the loss may have stored a higher base, and counts from it.
      local fence = tonumber(redis.call('GET', prefix .. 'fence') or '')
      if not fence or fence < tonumber(ARGV[first]) then redis.call('SET', prefix .. 'fence', ARGV[first]) end
    else
      for j = first, last, 3 do
        if tonumber(ARGV[j + 2]) > now then redis.call('SET', prefix .. ARGV[j], ARGV[j + 1], 'PXAT', ARGV[j + 2]) end
      end
    end
    i = last + 1
  end
  if ARGV[4] ~= '' then schedule(ARGV[4]) end
  return {'ok', now_text, answers}
end
