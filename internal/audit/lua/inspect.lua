-- Reads and checks all of a resource in one step.
--
-- ARGV  4 limit    of records, and of members of each sorted set
--       5 records  1 = return them
-- Returns ok now_ms n (what name found expected) ... and with records (id head over_ms) ...
--         |  large: there is more than the limit

local limit, wanted = tonumber(ARGV[4]), ARGV[5] == '1'

local most = size_of_sums()
local SETS = {{'due', DUE}, {'departing', DEPARTING}, {'tombstones', TOMBSTONES}}
for _, z in ipairs(SETS) do
  if not broken[z[1]] then most = math.max(most, redis.call('ZCARD', z[2])) end
end
if most > limit then return {'large'} end

local heads = {}
check_types()
each_record(function(id, hold, line)
  count(id, hold)
  check_hold(id, hold, line)
  if wanted and hold then append_record(heads, id, hold) end
end)
check_sums()
for _, z in ipairs(SETS) do
  if not broken[z[1]] then
    for _, id in ipairs(redis.call('ZRANGE', z[2], 0, -1)) do check_member(z[1], id) end
  end
end
local about_users = broken.users and {} or redis.call('HGETALL', USERS)
for i = 1, #about_users, 2 do
  if is_index(about_users[i]) then check_key('index:' .. about_users[i]) end
end
check_agenda()
check_rev()

local reply = {'ok', whole(now)}
append_differences(reply)
for _, word in ipairs(heads) do reply[#reply + 1] = word end
return reply
