-- Removes keys of a partition that is to be filled anew. Its KEYS are epoch and the keys.
--
-- ARGV  1 what the epoch is while the partition is filled
-- Returns ok

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  redis.call('UNLINK', unpack(KEYS, 2))
  return {'ok'}
end
