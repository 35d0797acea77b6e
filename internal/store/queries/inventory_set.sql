-- Sets the capacity of slots of one resource. Fails with
-- reserved_is_between_zero_and_capacity when more is reserved of one of them.
-- $1 resource_id  $2 slot[] (sorted)  $3 capacity
-- Returns slot, capacity, reserved of each.
INSERT INTO inventory (resource_id, slot, capacity)
SELECT $1, slot, $3
FROM unnest($2::text[]) AS s (slot)
ORDER BY slot
ON CONFLICT ON CONSTRAINT inventory_has_one_row_per_resource_and_slot
DO UPDATE SET capacity = excluded.capacity, updated_at = now()
RETURNING slot, capacity, reserved
