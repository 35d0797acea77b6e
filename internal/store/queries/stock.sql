-- Reads capacity and reserved of slots of several resources.
-- $1 resource_id[]  $2 slot[]   (pairs)
-- Returns n (the pair, from 1), capacity, reserved; no row for a pair that has none.
--
-- Each pair is looked up by the primary key. A plain join would read the whole table instead whenever the
-- planner has no statistics of it yet.
SELECT want.n, i.capacity, i.reserved
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS want (resource_id, slot, n)
CROSS JOIN LATERAL (
    SELECT capacity, reserved FROM inventory
    WHERE resource_id = want.resource_id AND slot = want.slot
    LIMIT 1 -- keeps the planner from making it that join
) AS i
