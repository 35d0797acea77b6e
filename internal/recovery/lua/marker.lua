-- Writes to partitions how far the outcome log reached before the call (marker.go). It does not begin with the
-- prelude, because one call serves many partitions.
--
-- KEYS  1 marking: names the worker that writes the markers; not replicated, so it costs the append-only file
--         nothing; then epoch and applied of each partition
-- ARGV  1 worker  2 lease_ms of marking  3 history that the server must have  4 position in the outcome log
--       then the epoch of each partition
-- Returns ok, or
--   lost  a partition has another epoch, or the server has another history: nothing was written
-- applied becomes "<epoch> <history> <position>". It is not written when it has that value already.

local epochs, markers = {}, {}
for p = 1, #ARGV - 4 do epochs[p], markers[p] = KEYS[2 * p], KEYS[2 * p + 1] end
local found = redis.call('MGET', unpack(epochs))
for p = 1, #epochs do
  if found[p] ~= ARGV[4 + p] then return {'lost'} end
end
-- Without this, a server that has taken over older data would show a marker of writes that it lacks.
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) or string.match(info, 'master_replid:(%x+)') ~= ARGV[3] then
  return {'lost'}
end
local values, stored = {}, redis.call('MGET', unpack(markers))
for p = 1, #markers do
  local marker = ARGV[4 + p] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]
  if stored[p] ~= marker then
    values[#values + 1] = markers[p]
    values[#values + 1] = marker
  end
end
if #values > 0 then
  redis.call('MSET', unpack(values))
  -- A second write makes Redis log both as a transaction, like those of a decision. A server whose default user may do
  -- nothing refuses transactions when it reads its append-only file, and runs single commands (redis/redis#14541): it
  -- would have the marker and lack what the marker says that it has.
  redis.call('SET', values[1], values[2])
end
redis.set_repl(redis.REPL_NONE)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.set_repl(redis.REPL_ALL)
return {'ok'}
