-- Reads settings as they are in this session, and where each comes from.
-- $1 name[]
-- Returns name, setting, source.
SELECT name, setting, source FROM pg_settings WHERE name = ANY ($1::text[]) ORDER BY name
