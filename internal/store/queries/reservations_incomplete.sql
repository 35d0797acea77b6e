-- Reads which reservations are not cancelled, or lack when they were.
-- $1 hold_id[]
-- Returns hold_id of each.
SELECT hold_id FROM reservations WHERE hold_id = ANY ($1::text[]) AND (status <> 'cancelled' OR cancelled_at IS NULL)
