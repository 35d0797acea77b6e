-- Reads lost commits in the order in which they got their reasons, those of one moment by id.
-- $1 maximum number  $2 noticed_at, $3 outcome_id: of the last one that was read before
-- Returns outcome_id, resource_id, reason, outcome, noticed_at.
SELECT outcome_id, resource_id, reason, outcome, noticed_at FROM lost_commits
WHERE (noticed_at, outcome_id) > ($2, $3)
ORDER BY noticed_at, outcome_id
LIMIT $1
