-- Reads the answers to payments, and the payment that has made the reservation of their hold.
-- $1 hold_id[]  $2 payment_id[]   (pairs)
-- Returns n (the pair, from 1), outcome, reason, late, decided_at (all null: no answer yet), hold (of the answer, else of the
-- payment in reserved_by), reserved_by (the payment of the hold's reservation, null: none), lost (a published outcome of the
-- hold is a lost commit), blocked (its resource has a lost commit)
SELECT want.n, p.outcome, p.reason, p.late, p.decided_at, coalesce(p.hold, paid.hold) AS hold, r.payment_id AS reserved_by,
    EXISTS (SELECT FROM lost_commits AS l
        WHERE l.resource_id = left(want.hold_id, -33)
            -- Metadata may have a NUL, which no text of Postgres can have.
            AND replace(l.outcome::text, '\u0000', '\ufffd')::json -> 'data' ->> 'hold_id' = want.hold_id) AS lost,
    EXISTS (SELECT FROM lost_commits AS l WHERE l.resource_id = left(want.hold_id, -33)) AS blocked
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS want (hold_id, payment_id, n)
LEFT JOIN payments AS p ON p.hold_id = want.hold_id AND p.payment_id = want.payment_id
LEFT JOIN reservations AS r ON r.hold_id = want.hold_id
LEFT JOIN payments AS paid ON paid.hold_id = r.hold_id AND paid.payment_id = r.payment_id
