-- Reads which reservations are not cancelled.
-- $1 hold_id[]
-- Returns hold_id of each that is not.
SELECT hold_id FROM reservations WHERE hold_id = ANY ($1::text[]) AND status <> 'cancelled'
