-- Sets the capacity of slots of one resource, except where a later event has set it already.
-- Fails with reserved_is_between_zero_and_capacity when more is reserved of one of them.
-- $1 resource_id  $2 slot[] (sorted)  $3 capacity  $4 when the event was stored
-- Returns slot, capacity, reserved of each.
INSERT INTO inventory AS i (resource_id, slot, capacity, set_by_event_at)
SELECT $1, slot, $3, $4
FROM unnest($2::text[]) AS s (slot)
ORDER BY slot
ON CONFLICT ON CONSTRAINT inventory_has_one_row_per_resource_and_slot
DO UPDATE SET
    capacity = CASE WHEN i.set_by_event_at > excluded.set_by_event_at THEN i.capacity ELSE excluded.capacity END,
    set_by_event_at = greatest(i.set_by_event_at, excluded.set_by_event_at),
    updated_at = now()
RETURNING slot, capacity, reserved
