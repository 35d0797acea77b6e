-- Lists the workers that may still publish what was decided before some new epochs. Workers of the version before do
-- not register: their connections count.
-- $1 "partition epoch"[]  $2 application_name of the version before
-- Returns id.
SELECT id FROM workers WHERE NOT drained @> $1::text[]
UNION ALL
SELECT 'process ' || pid FROM pg_stat_activity WHERE application_name = $2 AND datname = current_database()
