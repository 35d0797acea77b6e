-- Reads the reservation that a hold became.
-- $1 hold_id
-- Returns status, payment_id, quantity, slots, user_id, confirmed_at, cancelled_at, reason; no row when
-- the hold is no reservation.
SELECT status, payment_id, quantity, slots, user_id, confirmed_at, cancelled_at, coalesce(cancel_reason, '')
FROM reservations
WHERE hold_id = $1
