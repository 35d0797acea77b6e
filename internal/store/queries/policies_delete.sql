-- Deletes policies that decide no event any more: a later one has been in force for longer than any
-- event waits.
-- $1 how long that is (ms)
DELETE FROM policies AS p
WHERE EXISTS (
    SELECT FROM policies AS q
    WHERE q.since > p.since AND q.since < clock_timestamp() - $1 * interval '1 millisecond'
)
