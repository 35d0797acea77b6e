-- Sweeps one resource: expires the holds that are due, hands out expired holds that are not
-- announced yet, and removes tombstones whose time is over. Then it sets the next sweep in the
-- agenda.
--
-- ARGV  4 memory_ms  5 limit of each of the three  6 announce_ms: time for which no other call gets the
--       same holds  7 announce_limit: of the holds that are handed out. With 0 their announcement is put off
-- Returns ok again wait_ms id line id line ...: again is 1 when this call reached a limit, 2 when earlier
--         calls of the run had reached the limit of the run, otherwise 0. wait_ms is the time until the
--         earliest entry of the resource that is left, -1 when there is none

-- How long the announcement is put off, in ms. Meanwhile the resource is not due for it: else such resources would fill
-- the reply of agenda.lua, which has a limit, and others with due holds would not be in it. The audit has the same
-- time.
local PUT_OFF_MS = 500

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local DEPARTING, TOMBSTONES = prefix .. 'departing', prefix .. 'tombstones'
  local memory_ms, limit, announce_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  local announce_limit = tonumber(ARGV[7])

  local too_late = sweep_budget == 0
  local more, corrupt = sweep(limit, memory_ms)
  if corrupt then return {'corrupt', corrupt} end

  local over = redis.call('ZRANGE', TOMBSTONES, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
  if #over > 0 then
    redis.call('HDEL', RECORDS, unpack(over))
    redis.call('ZREM', TOMBSTONES, unpack(over))
  end

  local to_announce = redis.call('ZRANGE', DEPARTING, '-inf', now, 'BYSCORE', 'LIMIT', 0, announce_limit)
  local full = more or #over == limit or announce_limit > 0 and #to_announce == announce_limit
  local reply = {'ok', not full and 0 or too_late and 2 or 1, '-1'}
  for _, id in ipairs(to_announce) do
    local line = redis.call('HGET', RECORDS, id)
    if line then
      redis.call('ZADD', DEPARTING, now + announce_ms, id)
      reply[#reply + 1] = id
      reply[#reply + 1] = line
    else
      redis.call('ZREM', DEPARTING, id)
    end
  end

  local earliest
  for _, key in ipairs({DUE, DEPARTING, TOMBSTONES}) do
    local at = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if at and key == DEPARTING and announce_limit == 0 then at = math.max(at, now + PUT_OFF_MS) end
    if at and (not earliest or at < earliest) then earliest = at end
  end
  if earliest then
    redis.call('ZADD', AGENDA, earliest, resource)
    reply[3] = tostring(math.max(earliest - now, 0))
  else
    redis.call('ZREM', AGENDA, resource)
  end
  return reply
end
