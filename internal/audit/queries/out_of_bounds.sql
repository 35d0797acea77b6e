-- Finds inventory rows that violate the constraint.
-- $1 resource_id, '' = all
-- Returns resource_id, slot, capacity, reserved.
SELECT resource_id, slot, capacity, reserved
FROM inventory
WHERE NOT reserved BETWEEN 0 AND capacity AND resource_id = coalesce(nullif($1, ''), resource_id)
ORDER BY resource_id, slot
