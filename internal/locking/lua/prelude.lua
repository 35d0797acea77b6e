-- What the scripts of a range lock begin with.
--
-- The value of a locked key is <owner>:<acquisition>, and one more :<acquisition> for each time
-- that the owner has locked the key again. An acquisition is <fencing token>.<id>; its id never
-- repeats, so one that was released or has lapsed is never taken for a later one.

-- Returns value without the acquisition (fence may be a pattern), and whether it was there.
local function without(value, fence, id)
  local rest, found = string.gsub(value .. ':', ':' .. fence .. '%.' .. id .. ':', ':', 1)
  return string.sub(rest, 1, -2), found == 1
end

local ANY = '%d+'

-- Takes an acquisition off the list of those who wait. Returns whether it was on it. Its places in
-- the queues count for nothing then.
local function leave(scope, id)
  local was = redis.call('HDEL', scope .. 'waiting', id) == 1
  if was and redis.call('HLEN', scope .. 'waiting') == 1 then
    redis.call('DEL', scope .. 'waiting') -- only the last ticket was left
  end
  return was
end
