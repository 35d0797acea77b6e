-- Reads which holds became reservations, including cancelled ones.
-- $1 hold_id[]
-- Returns hold_id, payment_id, confirmed_at, late (false when the answer to the payment is missing) of each that did.
SELECT r.hold_id, r.payment_id, r.confirmed_at, coalesce(p.late, false) AS late
FROM reservations AS r
LEFT JOIN payments AS p ON p.hold_id = r.hold_id AND p.payment_id = r.payment_id
WHERE r.hold_id = ANY ($1::text[])
