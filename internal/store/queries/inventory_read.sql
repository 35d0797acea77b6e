-- Reads rows of one resource.
-- $1 resource_id  $2 slot[]
-- Returns slot, capacity, reserved of each.
SELECT slot, capacity, reserved FROM inventory WHERE resource_id = $1 AND slot = ANY ($2::text[])
