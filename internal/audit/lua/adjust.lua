-- Repairs counters of a resource that is too large to be added up in one step: by how much each is
-- wrong was found before, and stays so, because every script changes a counter and the records by
-- as much. One repairs at a time, who has the mark: a difference is taken off once.
--
-- ARGV  4 verb: begin | adjust | end  5 token: of who repairs
--       then, of begin: ttl_ms, after which another may begin
--             of adjust: four words each: counter | users, name, found, expected
-- Returns ok, and
--   of begin   begun | busy: another repairs
--   of adjust  a word each: done | changed: it is another one now, or another repairs

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
    return 'changed' -- nothing was counted as long as it was no number
  end
  if want == 0 then redis.call('HDEL', key, name) else redis.call('HSET', key, name, whole(want)) end
  return 'done'
end

local reply = {'ok'}
for i = 6, #ARGV, 4 do reply[#reply + 1] = adjust(unpack(ARGV, i, i + 3)) end
return reply
