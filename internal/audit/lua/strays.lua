-- Checks keys of a resource that belong to a hold, or expire by themselves.
--
-- ARGV  4... what follows the prefix in their names
-- Returns ok now_ms n (what name found expected) ...

for i = 4, #ARGV do check_key(ARGV[i]) end
local reply = {'ok', whole(now)}
append_differences(reply)
return reply
