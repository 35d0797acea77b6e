-- Settles a claim after Postgres has decided: the hold becomes confirmed, or is held again until
-- its deadline. The second record of a late payment is removed when Postgres has rejected it. The hold does not
-- change when it is not, or no longer, claimed by this payment. A confirmed payment increases rev even then. Nothing
-- changes when the hold was claimed before Postgres was compared.
--
-- ARGV  4 memory_ms  5 id, for a late payment late:<id>  6 payment  7 decision: confirmed | rejected
--       8 compared: from the reply of claim.lua
-- Returns ok word: settled | unchanged. Or the status again: Postgres was compared since the claim, and may have lost the
-- decision.

local function run(KEYS, ARGV)
  local compared = begin_payment(KEYS, ARGV)
  if not compared then return {'lost'} end
  if compared ~= ARGV[8] then return {'again'} end
  local memory_ms, id, payment, decision = tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]

  local line = redis.call('HGET', RECORDS, id)
  local hold = line and parse(line)
  if line and not hold then return {'corrupt', 'record of ' .. id} end
  -- Although the record may stay the same: Postgres may have reserved again what it had lost.
  if decision == 'confirmed' and bump_rev() then return {'corrupt', 'rev'} end
  if not hold or hold.state ~= 'confirming' or hold.by ~= payment then
    return {'ok', 'unchanged'}
  end

  if decision == 'confirmed' then
    local corrupt = end_hold(id, hold, 'confirmed', hold.ended, payment, memory_ms, 'tombstones')
    if corrupt then return {'corrupt', corrupt} end
  elseif is_late(id) then
    local corrupt = end_hold(id, hold, 'released', now, payment, memory_ms)
    if corrupt then return {'corrupt', corrupt} end
    redis.call('HDEL', RECORDS, id)
  else
    hold.state, hold.ended, hold.by = 'held', 0, '-'
    redis.call('HSET', RECORDS, id, format(hold))
    redis.call('ZADD', DUE, hold.deadline, id)
    if hold.deadline > now then set_hold_key(id, int(hold.deadline)) end
    redis.call('PEXPIRE', prefix .. 'request:' .. hold.request_key, math.max(hold.deadline - now, 0) + memory_ms)
    schedule(hold.deadline)
  end
  return {'ok', 'settled'}
end
