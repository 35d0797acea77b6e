-- Prevents epochs from being invalidated until the transaction ends.
-- $1 partition[]  $2 epoch[]
-- Returns the partitions whose current epoch it is, if Redis has it.
SELECT e.partition
FROM partition_epochs AS e
JOIN unnest($1::integer[], $2::text[]) AS i (partition, epoch) ON i.partition = e.partition
WHERE e.epoch = i.epoch AND e.written
ORDER BY e.partition FOR SHARE OF e
