-- Sets the capacity of slots of one resource, except where a later event has set it already. Fails
-- with reserved_is_between_zero_and_capacity when more of a slot is reserved.
-- $1 resource_id  $2 slot[] (sorted)  $3 capacity
-- $4 when the event was stored  $5 when its stream was created  $6 its sequence there
INSERT INTO inventory AS i
    (resource_id, slot, capacity, set_by_event_at, set_in_stream_at, set_by_stream_created_at, set_by_stream_seq)
SELECT $1, slot, $3, $4, $4, $5, $6
FROM unnest($2::text[]) AS s (slot)
ORDER BY slot
ON CONFLICT ON CONSTRAINT inventory_has_one_row_per_resource_and_slot
DO UPDATE SET
    (capacity, set_by_event_at, set_in_stream_at, set_by_stream_created_at, set_by_stream_seq) = (
        SELECT (winner).capacity, (winner).set_by_event_at,
            (winner).set_in_stream_at, (winner).set_by_stream_created_at, (winner).set_by_stream_seq
        FROM (SELECT CASE
            WHEN CASE
                WHEN i.set_in_stream_at = i.set_by_event_at
                THEN (i.set_by_stream_created_at, i.set_by_stream_seq)
                    > (excluded.set_by_stream_created_at, excluded.set_by_stream_seq)
                ELSE i.set_by_event_at > excluded.set_by_event_at -- the previous version has set it
            END THEN i ELSE excluded END) AS one (winner)
    ),
    updated_at = now()
