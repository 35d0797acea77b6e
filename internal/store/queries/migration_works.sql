-- Reports whether one of some sessions is running a statement, or has within a time. Where Postgres does not show what
-- sessions do (track_activities), they always are.
-- $1 process ids  $2 the time
-- Returns works, waits_for (what a statement waits for that others must do, such as "SyncRep", "" for nothing).
SELECT
    count(*) FILTER (
        WHERE coalesce(state, '') NOT LIKE 'idle%' OR state_change > clock_timestamp() - $2::interval
    ) > 0 AS works,
    coalesce(min(wait_event) FILTER (WHERE state = 'active' AND wait_event_type IN ('IPC', 'Lock')), '') AS waits_for
FROM pg_stat_activity WHERE pid = ANY($1)
