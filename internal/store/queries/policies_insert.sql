-- Stores a policy, unless it is the latest already. The first is in force at once.
-- $1 settings  $2 after how long a further policy comes into force (ms)
-- Returns in how many ms it is in force; no row if it was not stored.
WITH latest AS (
    SELECT since, settings FROM policies ORDER BY since DESC LIMIT 1
)
INSERT INTO policies (since, settings)
SELECT coalesce(
        (SELECT greatest(clock_timestamp() + $2 * interval '1 millisecond', since + interval '1 millisecond')
            FROM latest),
        to_timestamp(0)),
    $1
WHERE NOT EXISTS (SELECT FROM latest WHERE settings = $1)
RETURNING ceil(extract(epoch FROM greatest(since - clock_timestamp(), interval '0')) * 1000)::bigint
