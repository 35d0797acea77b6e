-- Reads the commit marker: every outcome up to it follows from a commit in this database.
-- Returns is_compared (workers have compared this server and timeline), stream_created_at (null: no worker has written
-- the marker), seq, marked_at (when the outcome with that seq was stored, or shortly after).
SELECT m.server = s.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS is_compared,
    m.stream_created_at, m.seq, m.marked_at
FROM commit_marker AS m, pg_control_system() AS s
