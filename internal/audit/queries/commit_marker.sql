-- Reads the commit marker: every outcome up to it follows from a commit in this database.
-- Returns is_compared (workers have compared this server and timeline; true on a standby, where it is unknown),
-- stream_created_at (null: no worker has written the marker), seq, marked_at (when the outcome with that seq was stored,
-- or shortly after).
SELECT CASE WHEN pg_is_in_recovery() THEN true
    ELSE m.server = s.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS is_compared,
    m.stream_created_at, m.seq, m.marked_at
FROM commit_marker AS m, pg_control_system() AS s
