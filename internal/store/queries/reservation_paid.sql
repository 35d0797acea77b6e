-- Reads the reservation that a payment has made of a hold.
-- $1 hold_id  $2 payment_id
-- Returns confirmed_at, request_key, user_id, slots, quantity; no row when the payment has made none.
SELECT confirmed_at, request_key, user_id, slots, quantity FROM reservations WHERE hold_id = $1 AND payment_id = $2
