-- Expires the holds that are due and reads what live holds take of some slots.
--
-- ARGV  4 memory_ms  5 sweep_limit  then the slots
-- Returns ok held ..., one for each slot
--         more  more holds are due than one call expires: call again

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local memory_ms, sweep_limit = tonumber(ARGV[4]), tonumber(ARGV[5])
  local more, corrupt = sweep(sweep_limit, memory_ms)
  if corrupt then return {'corrupt', corrupt} end
  if more then return {'more'} end

  local held
  held, corrupt = read_held(unpack(ARGV, 6))
  if corrupt then return {'corrupt', corrupt} end
  local reply = {'ok'}
  for i, count in ipairs(held) do reply[i + 1] = tostring(count) end
  return reply
end
