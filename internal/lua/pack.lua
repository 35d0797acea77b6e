-- Runs a script for several calls. On a cluster their keys share a hash slot.
--
-- KEYS  of all calls, one after the other
-- ARGV  of all calls, one after the other, then for each call how many KEYS and how many ARGV are its
--       own, then how many calls there are
-- Returns what each call returns, or {'error', text} for one in which a command failed: what it had
-- done by then is done, and the others are done too.

local function attempt(KEYS, ARGV)
  local done, reply = pcall(run, KEYS, ARGV)
  if done then return reply or {} end -- nil would end the list of replies
  return {'error', type(reply) == 'table' and reply.err or tostring(reply)}
end

local last = #ARGV
local calls = tonumber(ARGV[last])
if calls == 1 then -- KEYS and ARGV are its own as they are, but for the end
  ARGV[last], ARGV[last - 1], ARGV[last - 2] = nil, nil, nil
  return {attempt(KEYS, ARGV)}
end
local replies, key, arg, own = {}, 0, 0, last - 2 * calls
for i = 1, calls do
  local num_keys, num_args = tonumber(ARGV[own]), tonumber(ARGV[own + 1])
  replies[i] = attempt({unpack(KEYS, key + 1, key + num_keys)}, {unpack(ARGV, arg + 1, arg + num_args)})
  key, arg, own = key + num_keys, arg + num_args, own + 2
end
return replies
