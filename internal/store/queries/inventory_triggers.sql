-- Reads which triggers of inventory are off. A trigger that is not ENABLE ALWAYS does not fire under
-- session_replication_role = replica, and a disabled one never.
-- $1 names of triggers  $2 names of those that need not be ENABLE ALWAYS
-- Returns state (another text after each change of these triggers, also when it was undone), disabled (those that do not
-- fire where they must), missing.
SELECT
    string_agg(concat_ws(' ', want.name, t.oid, t.tgenabled, t.xmin), ',' ORDER BY want.name) AS state,
    coalesce(array_agg(want.name ORDER BY want.name) FILTER (
        WHERE t.tgenabled <> 'A' AND (t.tgenabled <> 'O' OR want.name <> ALL ($2::text[]))
    ), '{}') AS disabled,
    coalesce(array_agg(want.name ORDER BY want.name) FILTER (WHERE t.oid IS NULL), '{}') AS missing
FROM unnest($1::text[]) AS want (name)
LEFT JOIN pg_trigger AS t ON t.tgrelid = to_regclass('inventory') AND t.tgname = want.name
