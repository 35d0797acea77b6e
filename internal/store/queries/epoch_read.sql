-- Reads the epochs of the partitions, and which programs may use the schema.
-- Returns for each group of partitions that have the same: partition[], epoch, written, server, lost, lost_why,
-- rebuilder, progress ("" = none), works_from (the oldest schema version that a program may know).
SELECT array_agg(partition), epoch, written, coalesce(server, ''), coalesce(lost, ''), coalesce(lost_why, ''),
    coalesce(rebuilder, ''), coalesce(progress, ''),
    (SELECT works_from FROM schema_compatibility)
FROM partition_epochs
GROUP BY epoch, written, server, lost, lost_why, rebuilder, progress
