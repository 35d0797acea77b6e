-- Prepares a session for migrations. Statements that need a lock behind one that waits for it wait as long, so it gives up
-- soon. A session whose client is cut off ends, with the lock for which the next migration waits.
-- Returns the process id of the session.
SELECT pg_backend_pid()
FROM set_config('lock_timeout', '500ms', false) AS waiting, set_config('idle_session_timeout', '30s', false) AS idle
