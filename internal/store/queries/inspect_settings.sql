-- Reads settings of this session and their sources.
-- $1 name[]
-- Returns name, setting, source.
SELECT name, setting, source FROM pg_settings WHERE name = ANY ($1::text[]) ORDER BY name
