-- Reads for how long answers and ended holds are remembered, by the stored policy that is in force.
-- Returns request_key_ttl (a Go duration); no row when no policy is stored.
SELECT settings ->> 'request-key-ttl' AS request_key_ttl
FROM policies
WHERE since <= clock_timestamp()
ORDER BY since DESC
LIMIT 1
