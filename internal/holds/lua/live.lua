-- Counts the holds that can expire, of some resources of a partition.
--
-- ARGV  2 and 3 are ""  4 first: rank in the agenda of the first resource to count  5 limit: maximum
--         number of resources  6 top: maximum number of resources in the reply
-- Returns ok resources holds name count ...: resources is the number of resources in the agenda, holds
--         the number of holds of the counted ones, then those with the most holds

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local first, limit, top = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  local partition, total, counted = string.sub(EPOCH, 1, -6), 0, {}
  for _, name in ipairs(redis.call('ZRANGE', AGENDA, first, first + limit - 1)) do
    local count = redis.call('ZCARD', partition .. name .. ':due')
    total = total + count
    if count > 0 then counted[#counted + 1] = {name, count} end
  end
  table.sort(counted, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[1] < b[1] end)
  local reply = {'ok', tostring(redis.call('ZCARD', AGENDA)), tostring(total)}
  for i = 1, math.min(top, #counted) do
    reply[#reply + 1], reply[#reply + 2] = counted[i][1], tostring(counted[i][2])
  end
  return reply
end
