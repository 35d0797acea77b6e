-- Ends a lease, if the holder has it.
-- $1 name  $2 holder
UPDATE leases SET held_until = clock_timestamp() WHERE name = $1 AND holder = $2
