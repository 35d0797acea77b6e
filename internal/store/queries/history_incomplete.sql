-- Marks the server as one that was not compared, if it was: it lacks commits.
UPDATE commit_marker AS m SET server = ''
FROM pg_control_system() AS s
WHERE m.server = s.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
