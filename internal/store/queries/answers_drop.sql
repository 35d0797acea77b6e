-- Removes the oldest answers of events.
-- $1 how long ago they were decided, at least (ms)  $2 how many, at most
-- Affects one row an answer.
DELETE FROM event_answers WHERE cause = ANY (ARRAY(
    SELECT cause FROM event_answers
    WHERE decided_at < now() - $1 * interval '1 millisecond'
    ORDER BY decided_at
    LIMIT $2
))
