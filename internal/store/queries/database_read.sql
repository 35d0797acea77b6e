-- Reads which database this is, and how far its server is.
-- Returns id (of the server and of the database in it), position (bytes of write-ahead log so far).
SELECT s.system_identifier || '/' || d.oid AS id, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS position
FROM pg_control_system() AS s, pg_database AS d WHERE d.datname = current_database()
