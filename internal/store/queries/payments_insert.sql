-- Stores the permanent answers to payments.
-- $1 hold_id[]  $2 payment_id[]  $3 outcome[]  $4 reason[]  $5 decided_at[]  $6 amount[]  $7 currency[]  $8 hold[] (json)
-- $9 late[]
-- Affects one row a payment; fewer when another transaction has answered one.
INSERT INTO payments (hold_id, payment_id, outcome, reason, decided_at, amount, currency, hold, late)
SELECT p.hold_id, p.payment_id, p.outcome, p.reason, p.decided_at, p.amount, p.currency, p.hold::json, p.late
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::text[], $7::text[], $8::text[], $9::boolean[])
    AS p (hold_id, payment_id, outcome, reason, decided_at, amount, currency, hold, late)
ORDER BY p.hold_id, p.payment_id
ON CONFLICT ON CONSTRAINT a_payment_of_a_hold_has_one_answer DO NOTHING
