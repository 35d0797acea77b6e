-- Reads the proof of which Redis belongs to this database.
-- Returns epoch, written (false: Redis does not have it, or not yet), lost_why ("" = nothing was ever
-- written, or it is), progress of who fills Redis again.
SELECT epoch, written, coalesce(lost_why, ''), coalesce(progress, '') FROM redis_epoch
