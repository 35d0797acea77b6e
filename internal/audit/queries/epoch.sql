-- Reads the epoch of Redis that belongs to this database.
-- Returns epoch, written (false: Redis does not have it, or not yet), lost_why ("" = no data was lost), progress of
-- the rebuild of Redis ("" = none).
SELECT epoch, written, coalesce(lost_why, ''), coalesce(progress, '') FROM redis_epoch
