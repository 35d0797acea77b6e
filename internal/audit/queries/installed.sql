-- Reads when the schema was created, according to its first migration. goose stores that time
-- without a time zone.
-- Returns installed_at_ms.
SELECT coalesce(round(extract(EPOCH FROM min(tstamp) AT TIME ZONE current_setting('TimeZone')) * 1000), 0)::bigint AS installed_at_ms
FROM goose_db_version
