-- Gives back the keys that still belong to the lock. A lost key does not keep the others locked.
--
-- KEYS  the locked keys
-- ARGV  1 token
-- Returns ok lost: how many keys were not the lock's any more

local mine, lost = {}, 0
for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  if value == ARGV[1] then
    mine[#mine + 1] = KEYS[i]
  else
    lost = lost + 1
  end
end
if #mine > 0 then redis.call('DEL', unpack(mine)) end
return {'ok', lost}
