-- Reads the stored answers of events.
-- $1 cause[]
-- Returns cause, answer (json) of each event with an answer.
SELECT cause, answer FROM event_answers WHERE cause = ANY ($1::text[])
