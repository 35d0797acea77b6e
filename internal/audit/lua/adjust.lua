-- Repairs counters of a resource that is too large to be summed up in one step. By how much each is
-- wrong was computed before. That difference does not change, because every script changes a
-- counter and the records by the same number. Only the holder of the mark repairs, so a difference
-- is subtracted once.
--
-- ARGV  4 verb: begin | adjust | end  5 token: of the repair
--       then, of begin: ttl_ms, after which another repair may begin
--             of adjust: all, 1 = the counters are all that live holds take, and their key was missing when they were
--             read; then four words each: counter | users, name, found, expected
-- Returns ok, and
--   of begin   begun | busy: another repair has the mark
--   of adjust  a word each: done | changed: the difference is a different one now, another repair has the mark, or the
--              key of the counters is missing and the call does not have all of them

local verb, token = ARGV[4], ARGV[5]
local MARK = prefix .. 'lock'
local holder = redis.call('GET', MARK)

if verb == 'begin' then
  if holder and holder ~= token then return {'ok', 'busy'} end
  redis.call('SET', MARK, token, 'PX', ARGV[6])
  return {'ok', 'begun'}
end
if verb == 'end' then
  if holder == token then redis.call('DEL', MARK) end
  return {'ok'}
end

-- Scripts refuse to grant while the key is missing, and take a missing field for zero: one step writes all or none.
local incomplete = ARGV[6] ~= '1' and redis.call('EXISTS', COUNTS) == 0

local KEY_OF = {counter = {'counts', COUNTS}, users = {'users', USERS}}
local function adjust(what, name, found, expected)
  local kind, key = unpack(KEY_OF[what])
  if holder ~= token or broken[kind] then return 'changed' end
  if incomplete and what == 'counter' then return 'changed' end
  local is, was, want = redis.call('HGET', key, name) or '0', found == '-' and 0 or tonumber(found), tonumber(expected) or 0
  if was then
    if number_in(is) ~= is then return 'changed' end
    want = tonumber(is) + want - was
    if want < 0 then return 'changed' end
  elseif number_in(is) == is then
    return 'changed' -- scripts do not change a counter that is not a number
  end
  if want == 0 then redis.call('HDEL', key, name) else redis.call('HSET', key, name, whole(want)) end
  return 'done'
end

local reply = {'ok'}
for i = 7, #ARGV, 4 do reply[#reply + 1] = adjust(unpack(ARGV, i, i + 3)) end
return reply
