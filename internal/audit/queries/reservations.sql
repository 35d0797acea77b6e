-- Reads reservations.
-- $1 resource_id[], null = all; the id of a hold begins with its resource, and the column may have been changed by SQL
-- Returns hold_id, resource_id, slots, quantity, payment_id, cancelled, confirmed_at_ms, cancelled_at_ms (0 = unknown).
SELECT
    hold_id, resource_id, slots, quantity, payment_id, status = 'cancelled' AS cancelled,
    round(extract(EPOCH FROM confirmed_at) * 1000)::bigint AS confirmed_at_ms,
    coalesce(round(extract(EPOCH FROM cancelled_at) * 1000), 0)::bigint AS cancelled_at_ms
FROM reservations
WHERE $1::text[] IS NULL OR split_part(hold_id, '.', 1) = ANY ($1)
