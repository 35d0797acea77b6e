-- Stores when reservations were cancelled, unless that is stored already.
-- $1 hold_id[]  $2 now
-- Returns hold_id, cancelled_at of each.
UPDATE reservations
SET cancelled_at = coalesce(cancelled_at, $2)
WHERE hold_id = ANY ($1::text[]) AND status = 'cancelled'
RETURNING hold_id, cancelled_at
