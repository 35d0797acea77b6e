-- Reads the stored policies.
-- Returns since, settings, in the order of since.
SELECT since, settings::text FROM policies ORDER BY since
