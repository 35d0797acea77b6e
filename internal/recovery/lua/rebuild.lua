-- Writes the data of a resource. The caller has computed it (projection_plan.go), so a repeated call changes
-- nothing.
--
-- ARGV  1 the mark of the partition during the rebuild (mark.lua): after another rebuilder has taken over, the
--         partition has another mark, and the script writes nothing
--       4 time of the resource in the agenda (ms, "" when it needs none)
--       then sections: name n, and n values, at most 3,000:
--         records counts users       fields and their values
--         due departing tombstones   times (ms) and ids
--         strings                    suffixes and values: strings under <prefix><suffix>
--         expiring                   suffixes, values and expiry times (ms)
--         fence                      of the partition: the base of its fencing tokens, unless the stored one is higher
-- Returns ok now

local HASHES = {records = true, counts = true, users = true}
local ZSETS = {due = true, departing = true, tombstones = true}
local FIRST = 5

local function run(KEYS, ARGV)
  if not begin(KEYS, ARGV) then return {'lost'} end
  local i = FIRST
  while i <= #ARGV do
    local name, first, last = ARGV[i], i + 2, i + 1 + tonumber(ARGV[i + 1])
    if HASHES[name] then
      redis.call('HSET', prefix .. name, unpack(ARGV, first, last))
    elseif ZSETS[name] then
      redis.call('ZADD', prefix .. name, unpack(ARGV, first, last))
    elseif name == 'strings' then
      for j = first, last, 2 do ARGV[j] = prefix .. ARGV[j] end
      redis.call('MSET', unpack(ARGV, first, last))
    elseif name == 'fence' then
      -- A worker that has not noticed the loss may have stored a higher base, and counts from it.
      local fence = tonumber(redis.call('GET', prefix .. 'fence') or '')
      if not fence or fence < tonumber(ARGV[first]) then redis.call('SET', prefix .. 'fence', ARGV[first]) end
    else
      for j = first, last, 3 do
        if tonumber(ARGV[j + 2]) > now then redis.call('SET', prefix .. ARGV[j], ARGV[j + 1], 'PXAT', ARGV[j + 2]) end
      end
    end
    i = last + 1
  end
  if ARGV[4] ~= '' then schedule(ARGV[4]) end
  return {'ok', now_text}
end
