-- Adds to the reserved number of slots; a negative quantity subtracts. It locks the rows in
-- (resource_id, slot) order first: an UPDATE that joins locks in any order, and two of them could
-- deadlock.
-- $1 resource_id[]  $2 slot[]  $3 quantity[]   (distinct pairs)
-- Affects one row a pair; fewer when a pair has no inventory row. Fails with
-- reserved_is_between_zero_and_capacity when the capacity is exceeded.
WITH sums AS (
    SELECT s.resource_id, s.slot, s.quantity
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS s (resource_id, slot, quantity)
), locked AS MATERIALIZED (
    SELECT i.resource_id, i.slot
    FROM inventory AS i
    JOIN sums USING (resource_id, slot)
    ORDER BY i.resource_id, i.slot
    FOR UPDATE OF i
)
UPDATE inventory AS i
SET reserved = i.reserved + sums.quantity, updated_at = now()
FROM sums
JOIN locked USING (resource_id, slot)
WHERE i.resource_id = sums.resource_id AND i.slot = sums.slot
