-- Gives a partition another epoch, or none.
--
-- ARGV  1 the epoch that it has  4 that it is to have, "" = none
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
