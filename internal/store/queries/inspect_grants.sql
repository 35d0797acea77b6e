-- Finds the privileges that the current role lacks. Needs USAGE on the schema.
-- $1 schema  $2 relation[], or function for EXECUTE  $3 column[] ("" = the whole relation)  $4 privilege[]
-- Returns n (from 1) of each missing privilege; all privileges on a relation that does not exist.
SELECT want.n
FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS want (relation, attribute, privilege, n)
LEFT JOIN pg_class AS c ON c.relnamespace = to_regnamespace($1) AND c.relname = want.relation
WHERE NOT coalesce(
    CASE
        WHEN want.privilege = 'EXECUTE' THEN has_function_privilege(want.relation, want.privilege)
        WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, want.privilege)
        WHEN want.attribute = '' THEN has_table_privilege(c.oid, want.privilege)
        ELSE has_column_privilege(c.oid, want.attribute, want.privilege)
    END, false)
ORDER BY want.n
