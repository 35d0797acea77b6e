-- Reads the answers to payments.
-- $1 resource_id[], null = all; the id of a hold begins with its resource
-- Returns hold_id, payment_id, confirmed, reason ("" = none), late, decided_at_ms.
SELECT
    hold_id, payment_id, outcome = 'confirmed' AS confirmed, coalesce(reason, '') AS reason, late,
    round(extract(EPOCH FROM decided_at) * 1000)::bigint AS decided_at_ms
FROM payments
WHERE $1::text[] IS NULL OR split_part(hold_id, '.', 1) = ANY ($1)
