-- Marks epochs as invalid: Redis lacks data of these partitions that was written under them. Waits for the payments
-- that are being decided under them; no payment is decided under them afterwards.
-- $1 partition[]  $2 epoch[]  $3 why[]
-- Returns the partitions that were not marked before.
WITH invalid AS (
    SELECT e.partition, i.why
    FROM partition_epochs AS e
    JOIN unnest($1::integer[], $2::text[], $3::text[]) AS i (partition, epoch, why) ON i.partition = e.partition
    WHERE e.epoch = i.epoch AND e.written
    ORDER BY e.partition FOR UPDATE OF e
)
UPDATE partition_epochs AS e
SET written = false, lost = e.epoch, lost_why = invalid.why, rebuilder = NULL, leased_until = NULL, progress = NULL
FROM invalid WHERE e.partition = invalid.partition
RETURNING e.partition
