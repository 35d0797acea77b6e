-- Reads the lost cancellation of a reservation.
-- $1 resource_id  $2 hold_id
-- Returns outcome_id; no row when no published cancellation of it is a lost commit.
SELECT outcome_id FROM lost_commits
WHERE resource_id = $1 AND event = 'reservation.cancelled'
    -- Metadata may have a NUL, which no text of Postgres can have.
    AND replace(outcome::text, '\u0000', '\ufffd')::json -> 'data' ->> 'hold_id' = $2
ORDER BY noticed_at, outcome_id
LIMIT 1
