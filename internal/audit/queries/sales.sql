-- Counts the reservations and the answers to payments.
-- Returns sales.
SELECT (SELECT count(*) FROM reservations) + (SELECT count(*) FROM payments) AS sales
