-- Stores the answers of events.
-- $1 cause[]  $2 resource_id[]  $3 answer[] (json)
-- Affects one row an event; fewer when another transaction has answered one.
INSERT INTO event_answers (cause, resource_id, answer)
SELECT a.cause, a.resource_id, a.answer::json
FROM unnest($1::text[], $2::text[], $3::text[]) AS a (cause, resource_id, answer)
ORDER BY a.cause
ON CONFLICT ON CONSTRAINT an_event_has_one_answer DO NOTHING
