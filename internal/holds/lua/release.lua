-- Releases a live hold, found by its id or by its request key. To withdraw one is to release it by its id and to forget
-- the answer to its request, which was never published: the request is decided again when it is
-- delivered again or replayed.
--
-- ARGV  4 memory_ms  5 event_id  6 by: id | key | withdraw  7 the id or the request key
-- Returns ok word line id. line is the hold's record, "" when there is none. The word is
--   released        this event has released the hold, now or at an earlier delivery
--   cancelled       by key, and no request with the key was received: a later one is refused. Instead
--                   of the line the reply has the time (ms) at which the key was first cancelled.
--   claimed         a payment is being decided: retry later
--   refused_expired refused_released refused_confirmed refused_unknown_hold

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local memory_ms, event_id, by, id = tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]

  if by == 'key' then
    local request_key = prefix .. 'request:' .. id
    local answer = redis.call('GET', request_key)
    local word, at
    if answer then
      word, at = string.match(answer, '^(%S+) %S+ %S+ (%S+)')
      if not word then return {'corrupt', 'answer to request:' .. id} end -- a rebuild writes it again
    else
      word, at = 'cancelled', now_text
      local line = table.concat({'cancelled', '-', event_id, now, '-', '-', ''}, ' ')
      redis.call('SET', request_key, line, 'PX', memory_ms)
    end
    if word == 'cancelled' then return {'ok', 'cancelled', at, ''} end
    if word ~= 'created' then return {'ok', 'refused_unknown_hold', '', ''} end
    local created = string.match(answer, '^%S+ %S+ %S+ %S+ ([^: ]+)')
    if not created then return {'corrupt', 'answer to request:' .. id} end
    id = created
  end

  local line = redis.call('HGET', RECORDS, id)
  if not line then return {'ok', 'refused_unknown_hold', '', id} end
  local hold = parse(line)
  if not hold then return {'corrupt', 'record of ' .. id} end

  local corrupt
  local word = 'refused_' .. hold.state
  if hold.state == 'held' and hold.deadline <= now then
    corrupt = expire(id, hold, memory_ms)
    word = 'refused_expired'
  elseif hold.state == 'held' then
    corrupt = end_hold(id, hold, 'released', now, event_id, memory_ms, 'tombstones')
    word = 'released'
  elseif hold.state == 'confirming' then
    word = 'claimed'
  elseif hold.state == 'released' and hold.by == event_id then
    word = 'released'
  end
  if corrupt then return {'corrupt', corrupt} end
  if by == 'withdraw' and (hold.state == 'released' or hold.state == 'expired') then
    local request_key = prefix .. 'request:' .. hold.request_key
    local answer = redis.call('GET', request_key) or ''
    if string.match(answer, '^created %S+ %S+ %S+ ([^: ]+)') == id then redis.call('DEL', request_key) end
  end
  return {'ok', word, format(hold), id}
end
