-- Sets the capacities of slots of one resource as an inventory.set says, except where that event or a later one has set it.
-- Fails with reserved_is_between_zero_and_capacity when more of a slot is reserved.
-- $1 resource_id  $2 slot[] (sorted)  $3 capacity[]
-- $4 when the event was stored  $5 when its stream was created  $6 its sequence there
INSERT INTO inventory AS i
    (resource_id, slot, capacity, set_by_event_at, set_in_stream_at, set_by_stream_created_at, set_by_stream_seq)
SELECT $1, slot, capacity, $4, $4, $5, $6
FROM unnest($2::text[], $3::bigint[]) AS s (slot, capacity)
ORDER BY slot
ON CONFLICT ON CONSTRAINT inventory_has_one_row_per_resource_and_slot
DO UPDATE SET capacity = excluded.capacity, set_by_event_at = excluded.set_by_event_at,
    set_in_stream_at = excluded.set_in_stream_at, set_by_stream_created_at = excluded.set_by_stream_created_at,
    set_by_stream_seq = excluded.set_by_stream_seq, updated_at = now()
WHERE i.set_by_stream_seq IS NULL
    OR CASE
        WHEN i.set_by_stream_created_at NOT BETWEEN
            excluded.set_by_stream_created_at - interval '10 seconds' AND excluded.set_by_stream_created_at + interval '10 seconds'
            THEN i.set_by_stream_created_at < excluded.set_by_stream_created_at
        -- In a cluster of NATS each leader of a restored stream may have another time of its creation. Events stored after both
        -- are of one stream; else it was created again, and the later event counts.
        WHEN i.set_by_stream_created_at = excluded.set_by_stream_created_at
            OR least(i.set_by_event_at, excluded.set_by_event_at)
                > greatest(i.set_by_stream_created_at, excluded.set_by_stream_created_at)
            THEN i.set_by_stream_seq < excluded.set_by_stream_seq
        ELSE i.set_by_event_at < excluded.set_by_event_at
    END
