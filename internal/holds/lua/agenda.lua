-- Reads which resources of a partition have something due. Its KEYS are only epoch and agenda.
--
-- ARGV  4 limit
-- Returns ok wait_ms resource ...: wait_ms until the earliest entry that is not due yet, -1 = there is none

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local due = redis.call('ZRANGE', AGENDA, '-inf', now, 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[4]))
  local after = redis.call('ZRANGE', AGENDA, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local reply = {'ok', after[2] and tostring(after[2] - now) or '-1'}
  for i, name in ipairs(due) do reply[i + 2] = name end
  return reply
end
