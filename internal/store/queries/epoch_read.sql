-- Reads the epoch, and which programs may use the schema.
-- Returns epoch, partitions, written, server, lost, lost_why, rebuilder, progress ("" = none), works_from (the oldest
-- schema version that a program may know).
SELECT epoch, partitions, written, coalesce(server, ''), coalesce(lost, ''), coalesce(lost_why, ''), coalesce(rebuilder, ''), coalesce(progress, ''),
    (SELECT works_from FROM schema_compatibility)
FROM redis_epoch
