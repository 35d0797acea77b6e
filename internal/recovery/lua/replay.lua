-- Replaces records of a resource that has the data of an earlier moment (resume.go), with all that follows from
-- them. The caller has computed the records, so a repeated call changes nothing.
--
-- ARGV  1 the mark of the partition (swap.lua)  4 memory_ms
--       then 4 for each record: id, line ("" removes it), the sorted set that the id belongs to (due, departing
--         or tombstones, "" for none) and its time there (ms)
-- Returns ok

local SETS = {'due', 'departing', 'tombstones'}

local function is_live(hold) return hold and (hold.state == 'held' or hold.state == 'confirming') end

-- Adds a hold that was not live to the counts of its slots and of its user, and to the index. Returns nil,
-- or what is corrupt; then nothing was written.
local function begin_hold(id, hold)
  local names = split(hold.slots)
  local counts, held, corrupt = {}, read_held(unpack(names))
  if corrupt then return corrupt end
  for i, name in ipairs(names) do
    counts[2 * i - 1], counts[2 * i] = name, int(held[i] + hold.quantity)
  end
  local index = index_field(hold.user, hold.slots)
  local fields = redis.call('HMGET', USERS, hold.user, index)
  if not is_count(fields[1]) then return 'count of a user' end
  redis.call('HSET', COUNTS, unpack(counts))
  redis.call('HSET', USERS, hold.user, int(tonumber(fields[1] or '0') + 1))
  -- A user with two holds on the same slots should not exist. The index then names the older hold.
  if not fields[2] or id < fields[2] then redis.call('HSET', USERS, index, id) end
end

local function replay(id, line, set, at, memory_ms)
  local old_line = redis.call('HGET', RECORDS, id)
  local old, new = old_line and parse(old_line), line ~= '' and parse(line)
  if old_line and not old or line ~= '' and not new then return 'record of ' .. id end
  local corrupt
  if is_live(old) and not is_live(new) then
    corrupt = end_hold(id, old, 'released', now, '-', memory_ms)
  elseif is_live(new) and not is_live(old) then
    corrupt = begin_hold(id, new)
  end
  if corrupt then return corrupt end
  if new then redis.call('HSET', RECORDS, id, line) else redis.call('HDEL', RECORDS, id) end
  if not new or new.state ~= 'held' then redis.call('DEL', prefix .. 'hold:' .. id) end
  for _, name in ipairs(SETS) do
    if name ~= set then redis.call('ZREM', prefix .. name, id) end
  end
  if set ~= '' then
    redis.call('ZADD', prefix .. set, at, id)
    schedule(at)
  end
end

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  for i = 5, #ARGV, 4 do
    local corrupt = replay(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[4])
    if corrupt then return {'corrupt', corrupt} end
  end
  return {'ok'}
end
