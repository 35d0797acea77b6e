-- Stores lost commits, unless they are stored already. It does not wait for a session that is about to remove one.
-- $1 outcome_id[]  $2 resource_id[]  $3 event[]  $4 reason[]  $5 outcome[] (json)
INSERT INTO lost_commits (outcome_id, resource_id, event, reason, outcome)
SELECT l.outcome_id, l.resource_id, l.event, l.reason, l.outcome::json
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS l (outcome_id, resource_id, event, reason, outcome)
WHERE NOT EXISTS (SELECT FROM lost_commits AS stored WHERE stored.outcome_id = l.outcome_id) -- the constraint alone waits
ORDER BY l.outcome_id
ON CONFLICT ON CONSTRAINT an_outcome_is_lost_once DO NOTHING
