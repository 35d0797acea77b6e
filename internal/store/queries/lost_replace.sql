-- Removes lost commits, and stores those again that have another reason now: workers have no privilege to update them. What
-- another session has removed meanwhile is not stored again.
-- $1 outcome_id[]  $2 reason[] (null: it was put back)
WITH removed AS (
    DELETE FROM lost_commits AS l
    USING unnest($1::text[], $2::text[]) AS tried (outcome_id, reason)
    WHERE l.outcome_id = tried.outcome_id
    RETURNING l.outcome_id, l.resource_id, l.event, tried.reason, l.outcome
)
INSERT INTO lost_commits (outcome_id, resource_id, event, reason, outcome)
SELECT outcome_id, resource_id, event, reason, outcome FROM removed WHERE reason IS NOT NULL
