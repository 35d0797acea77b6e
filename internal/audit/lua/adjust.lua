-- Repairs counters of a resource that is too large to be summed up in one step. By how much each is
-- wrong was computed before. That difference does not change, because every script changes a
-- counter and the records by the same number. Only the holder of the mark repairs, so a difference
-- is subtracted once.
--
-- ARGV  4 verb: begin | adjust | end  5 token: of the repair
--       then, of begin: ttl_ms, after which another repair may begin
--             of adjust: four words each: counter | users, name, found, expected
-- Returns ok, and
--   of begin   begun | busy: another repair has the mark
--   of adjust  a word each: done | changed: the difference is a different one now, or another repair has the mark

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

local KEY_OF = {counter = {'counts', COUNTS}, users = {'users', USERS}}
local function adjust(what, name, found, expected)
  local kind, key = unpack(KEY_OF[what])
  if holder ~= token or broken[kind] then return 'changed' end
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
for i = 6, #ARGV, 4 do reply[#reply + 1] = adjust(unpack(ARGV, i, i + 3)) end
return reply
