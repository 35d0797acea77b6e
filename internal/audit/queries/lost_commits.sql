-- Reads the published outcomes whose commit was lost and that could not be put back.
-- $1 resource_id, '' = all
-- Returns resource_id, outcome_id, event, hold_id ('' when it has none), reason, noticed_at.
SELECT resource_id, outcome_id, event, coalesce(outcome #>> '{data,hold_id}', ''), reason, noticed_at
FROM lost_commits
WHERE resource_id = coalesce(nullif($1, ''), resource_id)
ORDER BY resource_id, noticed_at, outcome_id
