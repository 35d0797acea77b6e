-- Stores that everything up to a position was compared with this server: a new history begins.
-- $1 history  $2 server: both as they were read before, or there is none now (history_incomplete)  $3 the server now
-- $4 stream_created_at  $5 seq  $6 when the outcome with that seq was stored, null: unknown  $7 when the server was started
-- Returns the new history; no row when another worker has compared it meanwhile, or this is another server or was started
-- again.
UPDATE commit_marker AS m
SET history = gen_random_uuid(), server = $3, stream_created_at = $4, seq = $5, marked_at = coalesce($6, clock_timestamp())
FROM pg_control_system() AS s
WHERE m.history = $1 AND m.server IN ($2, '')
    AND pg_postmaster_start_time() = $7
    AND $3 = s.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
RETURNING m.history
