-- Counts a change of capacity or reserved in Postgres. It does so under any epoch, because the
-- change is not lost when Redis loses data.
--
-- Returns ok

local function run(KEYS, ARGV)
  begin(KEYS, ARGV)
  if bump_rev() then return {'corrupt', 'rev'} end
  return {'ok'}
end
