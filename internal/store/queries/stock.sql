-- Reads capacity and reserved of slots of several resources.
-- $1 resource_id[]  $2 slot[]   (pairs)
-- Returns n (the pair, from 1), capacity, reserved; no row for a pair that has none.
SELECT want.n, i.capacity, i.reserved
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS want (resource_id, slot, n)
JOIN inventory AS i ON i.resource_id = want.resource_id AND i.slot = want.slot
