-- Marks an epoch as complete: a server has all of it. $4 must be the running rebuild; "" = none, of the first epoch, which
-- was not lost since.
-- $1 partition[]  $2 epoch  $3 server  $4 rebuilder
-- Affects one row a partition; fewer when the epoch is not the current one, or is complete already.
UPDATE partition_epochs AS e
SET written = true, server = $3, lost = NULL, lost_why = NULL, rebuilder = NULL, leased_until = NULL, progress = NULL
FROM (
    SELECT partition FROM partition_epochs
    WHERE partition = ANY ($1::integer[]) AND epoch = $2 AND NOT written
        AND CASE $4 WHEN '' THEN rebuilder IS NULL AND lost IS NULL ELSE rebuilder = $4 END
    ORDER BY partition FOR UPDATE
) AS mine
WHERE e.partition = mine.partition
