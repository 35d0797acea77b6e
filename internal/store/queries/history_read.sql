-- Reads which history the server has, and the commit marker.
-- Returns now_on (the server and its timeline), started_us (when it was started), history, server (those that were compared
-- last), created_us (when the stream was created, null: no marker), seq, marked_us (when the outcome with that seq was
-- stored, or shortly after), marked_ms (how long ago that is), lost (number of lost commits).
SELECT s.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS now_on,
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS started_us,
    m.history, m.server, (extract(epoch FROM m.stream_created_at) * 1000000)::bigint AS created_us, m.seq,
    (extract(epoch FROM m.marked_at) * 1000000)::bigint AS marked_us,
    (extract(epoch FROM clock_timestamp() - m.marked_at) * 1000)::bigint AS marked_ms,
    (SELECT count(*) FROM lost_commits) AS lost
FROM commit_marker AS m, pg_control_system() AS s
