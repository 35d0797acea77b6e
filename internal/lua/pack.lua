-- Runs a script for several calls. In a cluster their keys are in one hash slot.
--
-- KEYS  the KEYS of all calls, one call after the other
-- ARGV  the ARGV of all calls, one call after the other; then for each call the number of its KEYS and of
--       its ARGV; then the number of calls
-- Returns the reply of each call, or {'error', text} for a call in which a command failed. The
-- earlier writes of that call and the other calls are not undone.

local function attempt(KEYS, ARGV)
  local done, reply = pcall(run, KEYS, ARGV)
  if done then return reply or {} end -- Redis cuts an array at the first nil
  return {'error', type(reply) == 'table' and reply.err or tostring(reply)}
end

local last = #ARGV
local calls = tonumber(ARGV[last])
if calls == 1 then -- without the last three values, KEYS and ARGV are those of the call
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
