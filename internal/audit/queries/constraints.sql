-- Reads the constraints of a schema, and whether each is validated for every row.
-- $1 schema
-- Returns conname, convalidated.
SELECT c.conname, c.convalidated
FROM pg_constraint AS c
JOIN pg_namespace AS n ON n.oid = c.connamespace
WHERE n.nspname = $1
