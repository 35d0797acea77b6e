-- Reports whether one of some sessions is running a statement, or has within a time. Where Postgres does not show what
-- sessions do (track_activities), they always are.
-- $1 process ids  $2 the time
SELECT count(*) FILTER (
    WHERE coalesce(state, '') NOT LIKE 'idle%' OR state_change > clock_timestamp() - $2::interval
) > 0 FROM pg_stat_activity WHERE pid = ANY($1)
