-- Reads which reservations are not cancelled, or lack when they were, or are lost commits themselves.
-- $1 hold_id[]
-- Returns hold_id of each.
SELECT hold_id FROM reservations WHERE hold_id = ANY ($1::text[]) AND (status <> 'cancelled' OR cancelled_at IS NULL)
UNION ALL
SELECT hold_id FROM lost_commits,
    -- Metadata may have a NUL, which no text of Postgres can have.
    LATERAL (SELECT replace(outcome::text, '\u0000', '\ufffd')::json -> 'data' ->> 'hold_id' AS hold_id) AS of
WHERE event = 'hold.confirmed' AND hold_id = ANY ($1::text[])
    AND resource_id IN (SELECT left(wanted, -33) FROM unnest($1::text[]) AS wanted)
