-- Renews the lease of a rebuild and stores its progress.
-- $1 partition[]  $2 epoch  $3 rebuilder  $4 how long it excludes others (ms, 0 = no longer)  $5 progress
-- Affects one row a partition; fewer when another rebuild has begun.
UPDATE partition_epochs AS e
SET leased_until = clock_timestamp() + $4 * interval '1 millisecond', progress = $5
FROM (
    SELECT partition FROM partition_epochs
    WHERE partition = ANY ($1::integer[]) AND epoch = $2 AND rebuilder = $3 AND NOT written
    ORDER BY partition FOR UPDATE
) AS mine
WHERE e.partition = mine.partition
