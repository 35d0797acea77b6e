-- Reads the server's version, the current role and the state of a schema.
-- $1 schema
-- Returns version, who (the role), database, encoding (of the database), creates (the role may create schemas), schema_exists, uses (the role may
-- use the schema), alters (it may also create tables in it, and alter its inventory if that exists), migrated (it has a table
-- of migrations), standbys (the quoted names of those that follow the server and may replace it), synchronous (the names of
-- those for which a commit waits), stuck (that commits wait without end: fewer of those follow than each needs, or a session
-- waits for them for 5 s).
SELECT
    current_setting('server_version') AS version,
    current_user::text AS who,
    current_database()::text AS database,
    current_setting('server_encoding') AS encoding,
    has_database_privilege(current_database(), 'CREATE') AS creates,
    s.oid IS NOT NULL AS schema_exists,
    coalesce(has_schema_privilege(s.oid, 'USAGE'), false) AS uses,
    coalesce(has_schema_privilege(s.oid, 'CREATE'), false) AND NOT EXISTS (
        SELECT FROM pg_class AS c
        WHERE c.relnamespace = s.oid AND c.relname = 'inventory' AND NOT pg_has_role(c.relowner, 'USAGE')
    ) AS alters,
    EXISTS (SELECT FROM pg_class AS c WHERE c.relnamespace = s.oid AND c.relname = 'goose_db_version') AS migrated,
    -- Not those that receive for a backup, or decode. A role without pg_read_all_stats sees these columns too.
    array(SELECT quote_ident(r.application_name) FROM pg_stat_replication AS r
        WHERE r.application_name NOT IN ('pg_basebackup', 'pg_receivewal') AND NOT starts_with(r.application_name, 'barman_')
            AND NOT EXISTS (SELECT FROM pg_replication_slots AS l WHERE l.active_pid = r.pid AND l.slot_type = 'logical')
    ) AS standbys,
    current_setting('synchronous_standby_names') AS synchronous,
    current_setting('synchronous_standby_names') <> '' AND (
        -- A role without pg_read_all_stats sees only NULL of those that follow, and no wait of another role's session.
        (SELECT count(*) FILTER (WHERE coalesce(r.sync_state, '') <> 'async') FROM pg_stat_replication AS r)
            < coalesce(substring(current_setting('synchronous_standby_names') FROM '^\s*(?:\w+\s+)?(\d+)\s*\(')::int, 1)
        OR EXISTS (SELECT FROM pg_stat_activity
            WHERE wait_event = 'SyncRep' AND clock_timestamp() - greatest(state_change, xact_start) > interval '5 seconds')
    ) AS stuck
FROM (SELECT to_regnamespace($1)::oid AS oid) AS s
