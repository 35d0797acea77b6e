-- Sums up the confirmed reservations of a slot.
-- $1 resource_id  $2 slot
-- Returns reservations.
SELECT coalesce(sum(quantity), 0)::bigint AS reservations
FROM reservations
WHERE resource_id = $1 AND status = 'confirmed' AND $2 = ANY (slots)
