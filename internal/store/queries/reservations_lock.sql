-- Locks reservations in the order of their ids, and reads what a cancellation restores.
-- $1 hold_id[]
-- Returns hold_id, resource_id, request_key, user_id, slots, quantity, cancelled, hold (json: the hold as in the answer to
-- its payment, null: that answer is missing) of each that exists.
SELECT r.hold_id, r.resource_id, r.request_key, r.user_id, r.slots, r.quantity, r.status = 'cancelled' AS cancelled, p.hold
FROM reservations AS r
LEFT JOIN payments AS p ON p.hold_id = r.hold_id AND p.payment_id = r.payment_id
WHERE r.hold_id = ANY ($1::text[])
ORDER BY r.hold_id
FOR UPDATE OF r
