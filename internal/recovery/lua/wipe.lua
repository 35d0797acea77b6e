-- Removes keys of a partition before it is rebuilt. KEYS are epoch and the keys.
--
-- ARGV  1 the mark of the partition during the rebuild (swap.lua)
-- Returns ok

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  redis.call('UNLINK', unpack(KEYS, 2))
  return {'ok'}
end
