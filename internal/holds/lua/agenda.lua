-- Reads the resources of a partition that have something due.
--
-- ARGV  2 and 3 are ""  4 limit: maximum number of resources
-- Returns ok wait_ms resource ...: wait_ms is the time until the earliest entry that is not due yet,
--         -1 when there is none

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local first = redis.call('ZRANGE', AGENDA, 0, 0, 'WITHSCORES')
  local first_at = tonumber(first[2])
  if not first_at then return {'ok', '-1'} end
  if first_at > now then return {'ok', tostring(first_at - now)} end
  local due = redis.call('ZRANGE', AGENDA, '-inf', now, 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[4]))
  local after = redis.call('ZRANGE', AGENDA, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local reply = {'ok', after[2] and tostring(after[2] - now) or '-1'}
  for i, name in ipairs(due) do reply[i + 2] = name end
  return reply
end
