-- Removes lost commits that were put back.
-- $1 outcome_id[]
DELETE FROM lost_commits WHERE outcome_id = ANY ($1::text[])
