-- Lists the workers that may still publish what was decided before some new epochs. A forgotten one may for a time.
-- Workers of the version before do not register: their connections count.
-- $1 "partition epoch"[]  $2 application_name of the version before  $3 the time (ms)
-- Returns id.
SELECT id FROM workers
WHERE NOT drained @> $1::text[]
    AND (forgotten_at IS NULL OR forgotten_at > clock_timestamp() - $3 * interval '1 millisecond')
UNION ALL
SELECT 'process ' || pid FROM pg_stat_activity WHERE application_name = $2 AND datname = current_database()
