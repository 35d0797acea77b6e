-- Removes the oldest answers of events.
-- $1 minimum age since they were decided (ms)  $2 maximum number
-- Affects one row an answer.
DELETE FROM event_answers WHERE cause = ANY (ARRAY(
    SELECT cause FROM event_answers
    WHERE decided_at < now() - $1 * interval '1 millisecond'
    ORDER BY decided_at
    LIMIT $2
))
