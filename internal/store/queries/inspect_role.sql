-- Reads the privileges of the current role that a worker does not need.
-- $1 schema
-- Returns attributes[] (attributes like SUPERUSER, of the role and of those that it may become, and predefined roles),
-- owned[] (tables and sequences of the schema whose owner it is or may become), destroys[] (privileges like "DELETE on
-- payments", on the other tables).
WITH me AS (
    SELECT r.* FROM pg_roles AS r JOIN pg_roles AS i ON i.rolname = current_user
    WHERE r.oid = i.oid OR NOT i.rolsuper AND pg_has_role(i.oid, r.oid, 'MEMBER') -- a superuser is a member of all
), relation AS (
    SELECT c.oid, c.relname::text, c.relkind, pg_has_role(c.relowner, 'MEMBER') AS mine
    FROM pg_class AS c
    WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'S')
)
SELECT
    ARRAY(
        SELECT a.attribute FROM me, unnest(
            ARRAY['SUPERUSER', 'CREATEROLE', 'CREATEDB', 'REPLICATION', 'BYPASSRLS', me.rolname::text],
            ARRAY[me.rolsuper, me.rolcreaterole, me.rolcreatedb, me.rolreplication, me.rolbypassrls, me.rolname IN (
                'pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files', 'pg_read_all_data', 'pg_write_all_data')]
        ) AS a (attribute, has)
        WHERE a.has GROUP BY a.attribute ORDER BY a.attribute
    ) AS attributes,
    ARRAY(SELECT relname FROM relation WHERE mine ORDER BY relname) AS owned,
    ARRAY(
        SELECT p.privilege || ' on ' || r.relname
        FROM relation AS r, unnest(ARRAY['DELETE', 'TRUNCATE', 'TRIGGER']) AS p (privilege)
        WHERE r.relkind = 'r' AND NOT r.mine AND has_table_privilege(r.oid, p.privilege)
            AND NOT (p.privilege = 'DELETE' AND r.relname IN ('event_answers', 'inventory', 'lost_commits', 'workers')) -- workers do so
        ORDER BY r.relname, p.privilege
    ) AS destroys
