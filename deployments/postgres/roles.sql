-- Roles in Postgres, part 1: roles and schema. Run it once, as a superuser, in a database for Holdfast
-- alone: it revokes the access of all other roles.
--
--   psql -v ON_ERROR_STOP=1 -f roles.sql "$ADMIN_URL"
--   worker migrate                     as holdfast_migrator
--   psql -v ON_ERROR_STOP=1 -f grants.sql "$MIGRATOR_URL"   after each worker migrate
--
-- Running it again changes nothing. The roles have no passwords: set one for each (\password holdfast_worker),
-- and require it in pg_hba.conf (scram-sha-256).
-- For another namespace than holdfast: sed 's/holdfast/NAMESPACE/g'.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['holdfast_migrator', 'holdfast_worker', 'holdfast_upstream', 'holdfast_auditor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I', name);
        END IF;
        EXECUTE format('ALTER ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', name);
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), name);
    END LOOP;
    EXECUTE format('REVOKE CONNECT, TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END
$$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC; -- before Postgres 15 every role may create tables there

-- worker migrate: owns only the schema and its tables. It does not create the schema, because that would
-- require CREATE on the database.
CREATE SCHEMA IF NOT EXISTS holdfast AUTHORIZATION holdfast_migrator;
DO $$
BEGIN
    IF (SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'holdfast') <> 'holdfast_migrator' THEN
        RAISE 'schema holdfast belongs to another role than holdfast_migrator'
            USING HINT = 'If a dump was restored before this file was run, drop the schema, run this file again, and restore the dump with pg_restore --clean --if-exists.';
    END IF;
END
$$;

-- An auditor cannot write, even by mistake.
ALTER ROLE holdfast_auditor SET default_transaction_read_only = on;
