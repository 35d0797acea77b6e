-- Finds slots whose reserved number differs from the sum of their confirmed reservations. One
-- statement sees one state of the database.
-- $1 resource_id[], null = all
-- Returns resource_id, slot, reserved (null: no inventory row), reservations (their sum).
WITH sums AS (
    SELECT r.resource_id, s.slot, sum(r.quantity)::bigint AS reservations
    FROM reservations AS r
    CROSS JOIN LATERAL unnest(r.slots) AS s (slot)
    WHERE r.status = 'confirmed' AND ($1::text[] IS NULL OR r.resource_id = ANY ($1))
    GROUP BY r.resource_id, s.slot
), stock AS (
    SELECT resource_id, slot, reserved
    FROM inventory
    WHERE $1::text[] IS NULL OR resource_id = ANY ($1)
)
SELECT resource_id, slot, stock.reserved, coalesce(sums.reservations, 0) AS reservations
FROM stock
FULL JOIN sums USING (resource_id, slot)
WHERE stock.reserved IS DISTINCT FROM coalesce(sums.reservations, 0)
ORDER BY resource_id, slot
