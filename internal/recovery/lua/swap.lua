-- Replaces the epoch of a partition, or removes it: to mark the partition as one that is being rebuilt or brought up to
-- date, so that every other script refuses, and to end that. It does not begin with the prelude, because it replaces the
-- epoch that the prelude compares, which may also be missing. KEYS are epoch and applied.
--
-- ARGV  1 to      the new value of the epoch, "" to remove it
--       2 from    the value that it must have, "" for none. Who marks a partition has read it while it had the lease. A
--                 worker that was suspended since then finds another one when a later rebuild has begun: two epochs of
--                 a partition have the same name only when Postgres has lost the first one, and its clock was ahead
--                 then (epoch_begin.sql). Only when the key is missing, and was then, does it mark a partition that a
--                 later rebuild has completed, and that was lost since: the next check finds that loss.
--       3 keep    "1" to keep the marker: the data stays what it is. Otherwise applied is removed, because
--                 the data is about to change.
-- Returns ok marker: the one before, "" when missing; or
--   lost  the epoch has another value: nothing was written
-- A value that is not a string counts as missing.

local found, marker = redis.pcall('GET', KEYS[1]), redis.pcall('GET', KEYS[2])
if type(found) ~= 'string' then found = '' end
if type(marker) ~= 'string' then marker = '' end
if found ~= ARGV[2] then return {'lost'} end
if ARGV[1] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[1]) end
if ARGV[3] ~= '1' then redis.call('DEL', KEYS[2]) end
return {'ok', marker}
