-- Reads the epochs of the partitions of Redis that belong to this database.
-- Returns for each group of partitions that have the same: partition[], epoch, written (false: Redis does not have it, or
-- not yet), lost_why ("" = no data was lost), progress of the rebuild ("" = none).
SELECT array_agg(partition), epoch, written, coalesce(lost_why, ''), coalesce(progress, '')
FROM partition_epochs
GROUP BY epoch, written, lost_why, progress
ORDER BY min(partition)
