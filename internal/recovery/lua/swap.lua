-- Replaces the epoch of a partition, or removes it.
--
-- ARGV  1 the present epoch  4 the new epoch, "" to remove it
-- Returns ok

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  if ARGV[4] == '' then
    redis.call('DEL', EPOCH)
  else
    redis.call('SET', EPOCH, ARGV[4])
  end
  return {'ok'}
end
