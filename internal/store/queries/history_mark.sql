-- Moves the commit marker forward, if this is still the history and the server that were compared, not started again since,
-- and not an older state of that server. Moves it back, if it is still where it was when the server was checked last.
-- $1 history  $2 server  $3 stream_created_at  $4 seq: both were read before
-- $5 stream_created_at  $6 seq: of the marker that the server had when it was checked last
-- $7 when the outcome with seq $4 was stored, null: unknown  $8 when the server was started
UPDATE commit_marker AS m SET stream_created_at = $3, seq = $4, marked_at = coalesce($7, clock_timestamp())
FROM pg_control_system() AS s
WHERE m.history = $1 AND m.server = $2 AND pg_postmaster_start_time() = $8
    AND m.server = s.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
    AND (m.stream_created_at IS DISTINCT FROM $3 OR m.seq < $4 OR m.seq = $6)
    AND ($6 = 0 OR m.stream_created_at > $5 OR m.stream_created_at = $5 AND m.seq >= $6)
