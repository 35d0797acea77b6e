-- Reads holds that can expire, in the order of their deadlines; of one deadline, in the order of
-- their ids.
--
-- ARGV  4 deadline  5 id: begin after this place in the order, which need not be a hold's; 0 and "" for
--         the start  6 limit: maximum number of holds that are read  7 user: only this user's, "" for all
--       8 wanted: maximum number of holds in the reply
-- Returns ok now deadline id id line ...: deadline and id are the place of the last hold that was
--         read, "" and "" when no more follow

-- Returns the rank of the first member behind a place. It halves the set, so it reads few members
-- also of a set with many, or with many of one deadline.
local function rank_after(deadline, id)
  local low, high = 0, redis.call('ZCARD', DUE)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('ZRANGE', DUE, middle, middle, 'WITHSCORES')
    local at = tonumber(found[2])
    if at < deadline or at == deadline and found[1] <= id then low = middle + 1 else high = middle end
  end
  return low
end

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local deadline, id, limit, user, wanted =
    tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
  -- Those that are due are no longer live. An id is hexadecimal: in every order in which Lua may compare texts, which
  -- depends on the locale of the server, none is above g.
  if deadline < now then deadline, id = now, 'g' end
  local first = rank_after(deadline, id)
  local found = redis.call('ZRANGE', DUE, first, first + limit - 1, 'WITHSCORES')
  local reply = {'ok', tostring(now), '', ''}
  if #found == 0 then return reply end
  local ids = {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local lines, read = redis.call('HMGET', RECORDS, unpack(ids)), 0
  for i, line in ipairs(lines) do
    read = i
    local hold = line and parse(line)
    if line and not hold then return {'corrupt', 'record of ' .. ids[i]} end
    if hold and hold.state == 'held' and (user == '' or hold.user == user) then
      reply[#reply + 1], reply[#reply + 2] = ids[i], line
      if (#reply - 4) / 2 == wanted then break end
    end
  end
  if read == limit or read < #ids then reply[3], reply[4] = found[2 * read], ids[read] end
  return reply
end
