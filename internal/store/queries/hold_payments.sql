-- Reads the answers to the payments of a hold, in the order in which they were decided.
-- $1 hold_id  $2 maximum number of rows
-- Returns payment_id, outcome, reason, decided_at, late of each.
SELECT payment_id, outcome, coalesce(reason, ''), decided_at, late
FROM payments
WHERE hold_id = $1
ORDER BY decided_at, payment_id
LIMIT $2
