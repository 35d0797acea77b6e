-- queries/epoch_read.sql
-- Reads the epoch.
-- Returns epoch, partitions, written, server, lost, lost_why, rebuilder, progress ("" = there is none).
SELECT epoch, partitions, written, coalesce(server, ''), coalesce(lost, ''), coalesce(lost_why, ''), coalesce(rebuilder, ''), coalesce(progress, '')
FROM redis_epoch
