-- Looks at one page of a resource that is too large for one step. Each hold is judged with its keys
-- in this step; what live holds take is added up as it was when the first page was read. The sums
-- are a hint: a page may repeat what another has told.
--
-- ARGV  4 part: records | due | departing | tombstones | users: the index in it  5 cursor  6 count
--       7 at_ms    when the first page of records was read, "" = this is it
--       8 last     the highest time of a tombstone then
--       9 records  1 = return them  10 users_max: where the hash of users has more fields, their numbers of holds
--                                       are not returned
-- Returns ok now_ms cursor at_ms last  s (slot sum) ...  c (slot counter) ...  u (user sum) ...  v (user number) ...
--   n (what name found expected) ...  and records as look.lua does. s, c, u and v are numbers of pairs; the
--   counters and the numbers of the users come with the first page, v is -1 when there are too many.

local part, cursor, count, wanted = ARGV[4], ARGV[5], ARGV[6], ARGV[9] == '1'
local first = part == 'records' and ARGV[7] == ''
local at, last = ARGV[7], ARGV[8]

local KEY_OF = {due = DUE, departing = DEPARTING, tombstones = TOMBSTONES}
local counters, users = {}, {}
if first then
  at, last = whole(now), '0'
  if not broken.tombstones then last = redis.call('ZRANGE', TOMBSTONES, -1, -1, 'WITHSCORES')[2] or '0' end
  if not broken.counts then counters = redis.call('HGETALL', COUNTS) end
  if not broken.users then
    local all = redis.call('HLEN', USERS) <= tonumber(ARGV[10]) and redis.call('HGETALL', USERS)
    if not all then users = nil end
    for i = 1, all and #all or 0, 2 do
      if not is_index(all[i]) then
        users[#users + 1] = all[i]
        users[#users + 1] = all[i + 1]
      end
    end
  end
  judge_types()
  judge_agenda()
  judge_rev()
end
local at_ms, last_ms = tonumber(at), tonumber(last)

-- Whether a hold took its slots at at_ms: a record tells when it began and when it ended. When a
-- payment was settled is only told by the tombstone, and those are written in order.
local function lived(id, hold)
  if first then return hold.live end
  local began = hold.late and hold.ended or hold.created
  if tonumber(began) > at_ms then return false end
  if hold.live then return true end
  if hold.state == 'confirmed' then
    local _, over = place_of(id, hold)
    return not over or tonumber(over) > last_ms
  end
  return tonumber(hold.ended) > at_ms
end

local heads = {}
if broken[part] then
  cursor = '0'
elseif part == 'records' then
  local page = redis.call('HSCAN', RECORDS, cursor, 'COUNT', count)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local id, hold = page[2][i], read(page[2][i], page[2][i + 1])
    judge_hold(id, hold, page[2][i + 1])
    if hold and lived(id, hold) then take(hold) end
    if hold and wanted then tell(heads, id, hold) end
  end
elseif part == 'users' then
  local page = redis.call('HSCAN', USERS, cursor, 'COUNT', count)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    if is_index(page[2][i]) then judge_key('index:' .. page[2][i]) end
  end
else
  local page = redis.call('ZSCAN', KEY_OF[part], cursor, 'COUNT', count)
  cursor = page[1]
  for i = 1, #page[2], 2 do judge_member(part, page[2][i]) end
end

local reply = {'ok', whole(now), cursor, at, last}
local function tell_sums(all)
  local n, place = 0, #reply + 1
  reply[place] = '0'
  for name, sum in pairs(all) do
    reply[#reply + 1] = name
    reply[#reply + 1] = whole(sum)
    n = n + 1
  end
  reply[place] = whole(n)
end
local function tell_pairs(all)
  reply[#reply + 1] = all and whole(#all / 2) or '-1'
  for _, word in ipairs(all or {}) do reply[#reply + 1] = word end
end
tell_sums(sums)
tell_pairs(counters)
tell_sums(live_of)
tell_pairs(users)
tell_differences(reply)
for _, word in ipairs(heads) do reply[#reply + 1] = word end
return reply
