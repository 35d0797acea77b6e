-- Reads the answers that payments have already, and whose the reservation of their hold is.
-- $1 hold_id[]  $2 payment_id[]   (pairs)
-- Returns n (the pair, from 1), outcome, reason, late, decided_at, hold (all null: no answer yet),
-- reserved_by (the payment of the hold's reservation, null: there is none)
SELECT want.n, p.outcome, p.reason, p.late, p.decided_at, p.hold, r.payment_id AS reserved_by
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS want (hold_id, payment_id, n)
LEFT JOIN payments AS p ON p.hold_id = want.hold_id AND p.payment_id = want.payment_id
LEFT JOIN reservations AS r ON r.hold_id = want.hold_id
