-- Counts a change of capacity or reserved in Postgres, under whatever epoch: a change is none of Redis' data.
--
-- Returns ok

local function run(KEYS, ARGV)
  begin(KEYS, ARGV)
  if bump_rev() then return {'damaged', 'rev'} end
  return {'ok'}
end
