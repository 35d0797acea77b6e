-- Makes the number of each later epoch higher than a number, and ends the rebuilds that run: what they have read of
-- payments may be lost.
-- $1 number
UPDATE partition_epochs AS e
SET generation = greatest(e.generation, $1), rebuilder = NULL, leased_until = NULL, progress = NULL
FROM (
    SELECT partition FROM partition_epochs WHERE generation < $1 OR NOT written
    ORDER BY partition FOR UPDATE
) AS old
WHERE e.partition = old.partition
