-- Reads the answers to payments.
-- $1 resource_id[], null = all; the id of a hold begins with its resource
-- Returns hold_id, payment_id, confirmed, reason ("" = none), late, decided_at_ms, hold (json; of a confirmed payment of a
-- hold without a reservation, else "").
SELECT
    p.hold_id, p.payment_id, p.outcome = 'confirmed' AS confirmed, coalesce(p.reason, '') AS reason, p.late,
    round(extract(EPOCH FROM p.decided_at) * 1000)::bigint AS decided_at_ms,
    CASE WHEN p.outcome = 'confirmed' AND r.hold_id IS NULL THEN p.hold::text ELSE '' END AS hold
FROM payments AS p LEFT JOIN reservations AS r ON r.hold_id = p.hold_id
WHERE $1::text[] IS NULL OR split_part(p.hold_id, '.', 1) = ANY ($1)
