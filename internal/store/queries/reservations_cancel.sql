-- Cancels locked reservations.
-- $1 hold_id[]  $2 cause[]  $3 reason[]
UPDATE reservations AS r
SET status = 'cancelled', cancelled_by = c.cause, cancel_reason = c.reason
FROM unnest($1::text[], $2::text[], $3::text[]) AS c (hold_id, cause, reason)
WHERE r.hold_id = c.hold_id
