-- Claims a hold for a payment. From then on the hold cannot expire until settle.lua ends the claim.
--
-- ARGV  4 memory_ms  5 id  6 payment
-- Returns ok word now line late compared. line is the record, "" when there is none. late is 1 when it is the
-- record late:<id> of a late payment, otherwise 0. compared counts the comparisons of Postgres, for settle.lua. The
-- word is one of
--   claimed            this payment has claimed the hold, in this call or an earlier one
--   confirmed          this payment was already settled: Postgres has its answer
--   claimed_by_other   another payment is being decided: retry later
--   already_confirmed  another payment was confirmed
--   expired released unknown_hold   no hold to pay for

local function run(KEYS, ARGV)
  local compared = begin_payment(KEYS, ARGV)
  if not compared then return {'lost'} end
  local memory_ms, id, payment = tonumber(ARGV[4]), ARGV[5], ARGV[6]

  local lines = redis.call('HMGET', RECORDS, id, late_id(id))
  local line, late_line = lines[1], lines[2]
  if late_line then -- it decides, whether or not the hold itself is still remembered
    local hold = parse(late_line)
    if not hold then return {'corrupt', 'record of ' .. late_id(id)} end
    return {'ok', claim_word(hold, payment), now_text, late_line, 1, compared}
  end
  if not line then return {'ok', 'unknown_hold', now_text, '', 0, compared} end
  local hold = parse(line)
  if not hold then return {'corrupt', 'record of ' .. id} end

  if hold.state == 'held' and hold.deadline <= now then
    local corrupt = expire(id, hold, memory_ms)
    if corrupt then return {'corrupt', corrupt} end
    line = format(hold)
  end

  local word = hold.state
  if hold.state == 'held' then
    hold.state, hold.ended, hold.by = 'confirming', now, payment
    line = format(hold)
    redis.call('ZREM', DUE, id) -- first: if it is not a sorted set, nothing else is written
    redis.call('HSET', RECORDS, id, line)
    redis.call('DEL', prefix .. 'hold:' .. id)
    redis.call('PERSIST', prefix .. 'request:' .. hold.request_key)
    word = 'claimed'
  elseif hold.state == 'confirming' or hold.state == 'confirmed' then
    word = claim_word(hold, payment)
  end
  return {'ok', word, now_text, line, 0, compared}
end
