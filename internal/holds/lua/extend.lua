-- Moves the deadline of a held hold to a later time: for a booking.extended each time, for a
-- payment.started only once.
--
-- ARGV  4 memory_ms  5 event_id  6 id  7 ttl_ms  8 lifetime_ms: the longest life of a hold
--       9 why: requested | started | invalid (then the script only reads the hold)
-- Returns ok word at_ms deadline_ms line. line is the hold's record, "" when there is none. The word is
--   invalid_request
--   extended         the deadline is at least at_ms + ttl_ms
--   limit_reached    the new deadline exceeds the longest life of the hold: nothing was changed
--   already_started  another event has started the payment: nothing was changed
--   claimed          a payment is being decided: retry later
--   expired released confirmed unknown_hold
-- extended, limit_reached and already_started are remembered under extension:<event_id>, so that
-- they are the same at every delivery.

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local memory_ms, event_id, id = tonumber(ARGV[4]), ARGV[5], ARGV[6]
  local ttl_ms, lifetime_ms, why = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]

  local line = redis.call('HGET', RECORDS, id)
  if why == 'invalid' then return {'ok', 'invalid_request', '0', '0', line or ''} end
  if not line then return {'ok', 'unknown_hold', '0', '0', ''} end
  local hold = parse(line)
  if not hold then return {'corrupt', 'record of ' .. id} end

  local answer_key = prefix .. 'extension:' .. event_id
  local remembered = redis.call('GET', answer_key)
  if remembered then
    local word, at, deadline = string.match(remembered, '^(%S+) (%d+) (%d+)$')
    if not word then return {'corrupt', 'answer to ' .. event_id} end
    return {'ok', word, at, deadline, line}
  end

  if hold.state == 'held' and hold.deadline <= now then
    local corrupt = expire(id, hold, memory_ms)
    if corrupt then return {'corrupt', corrupt} end
  end
  if hold.state == 'confirming' then return {'ok', 'claimed', '0', '0', ''} end
  if hold.state ~= 'held' then return {'ok', hold.state, '0', '0', format(hold)} end

  local word, deadline = 'extended', math.max(hold.deadline, now + ttl_ms)
  if why == 'started' and redis.call('EXISTS', started_key(id)) == 1 then
    word = 'already_started'
  elseif deadline > hold.deadline and deadline > hold.created + lifetime_ms then
    word = 'limit_reached'
  else
    hold.deadline = deadline
    redis.call('ZADD', DUE, deadline, id) -- first: if it is not a sorted set, nothing else is written
    if why == 'started' then redis.call('SET', started_key(id), now) end
    redis.call('HSET', RECORDS, id, format(hold))
    set_hold_key(id, int(hold.deadline))
    redis.call('PEXPIRE', prefix .. 'request:' .. hold.request_key, deadline - now + memory_ms)
    redis.call('PEXPIRE', started_key(id), deadline - now + memory_ms) -- if it exists; the limits may have been raised
  end
  redis.call('SET', answer_key, table.concat({word, now, hold.deadline}, ' '), 'PX', memory_ms)
  return {'ok', word, tostring(now), tostring(hold.deadline), format(hold)}
end
