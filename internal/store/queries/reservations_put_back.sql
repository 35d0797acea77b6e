-- Puts back when reservations were cancelled, where only that was lost: a cancellation has two commits.
-- $1 hold_id[]  $2 cancelled_at[]   (pairs)
UPDATE reservations AS r SET cancelled_at = c.cancelled_at
FROM unnest($1::text[], $2::timestamptz[]) AS c (hold_id, cancelled_at)
WHERE r.hold_id = c.hold_id AND r.status = 'cancelled' AND r.cancelled_at IS NULL
