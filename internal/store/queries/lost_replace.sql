-- Removes lost commits, and stores those again that have another reason now: workers have no privilege to update them.
-- $1 outcome_id[]  $2 reason[] (null: it was put back)
-- Returns how many it removed: fewer when another session has removed one meanwhile.
WITH removed AS (
    DELETE FROM lost_commits AS l
    USING unnest($1::text[], $2::text[]) AS tried (outcome_id, reason)
    WHERE l.outcome_id = tried.outcome_id
    RETURNING l.outcome_id, l.resource_id, l.event, tried.reason, l.outcome
), stored AS (
    INSERT INTO lost_commits (outcome_id, resource_id, event, reason, outcome)
    SELECT outcome_id, resource_id, event, reason, outcome FROM removed WHERE reason IS NOT NULL
)
SELECT count(*) FROM removed
