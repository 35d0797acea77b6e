-- Lists the workers that may still publish what was decided before some new epochs. A forgotten one may for a time.
-- $1 "partition epoch"[]  $2 the time (ms)
-- Returns id.
SELECT id FROM workers
WHERE NOT drained @> $1::text[]
    AND (forgotten_at IS NULL OR forgotten_at > clock_timestamp() - $2 * interval '1 millisecond')
