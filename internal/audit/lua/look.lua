-- Looks at all of a resource in one step.
--
-- ARGV  4 what: all | sums: only what live holds take and how many each user has
--       5 limit    of records and of what is in the sorted sets; of sums of records alone
--       6 records  1 = return them
-- Returns ok now_ms size n (what name found expected) ... and with records (id head place) ...,
--           the size being that of records
--         |  large: there is more than the limit

local what, limit, wanted = ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'

local size = broken.records and 0 or redis.call('HLEN', RECORDS)
local most = size
local SETS = {{'due', DUE}, {'departing', DEPARTING}, {'tombstones', TOMBSTONES}}
for _, z in ipairs(SETS) do
  if what == 'all' and not broken[z[1]] then most = math.max(most, redis.call('ZCARD', z[2])) end
end
if what == 'all' and not broken.users then most = math.max(most, math.floor(redis.call('HLEN', USERS) / 2)) end
if most > limit then return {'large'} end

local heads = {}
if what == 'all' then judge_types() end
each_record(function(id, hold, line)
  count(id, hold)
  if what == 'all' then judge_hold(id, hold, line) end
  if wanted and hold then tell(heads, id, hold) end
end)
judge_sums()
if what == 'all' then
  for _, z in ipairs(SETS) do
    if not broken[z[1]] then
      for _, id in ipairs(redis.call('ZRANGE', z[2], 0, -1)) do judge_member(z[1], id) end
    end
  end
  local about_users = broken.users and {} or redis.call('HGETALL', USERS)
  for i = 1, #about_users, 2 do
    if is_index(about_users[i]) then judge_key('index:' .. about_users[i]) end
  end
  judge_agenda()
  judge_rev()
end

local reply = {'ok', whole(now), whole(size)}
tell_differences(reply)
for _, word in ipairs(heads) do reply[#reply + 1] = word end
return reply
