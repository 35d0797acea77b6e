-- Reads the answers that events have already.
-- $1 cause[]
-- Returns cause, answer (json) of each that has one.
SELECT cause, answer FROM event_answers WHERE cause = ANY ($1::text[])
