-- Retires the row that workers of the version before read. They decide nothing any more, and rebuild nothing.
-- It comes before the rows of the partitions: the trigger of redis_epoch locks them in this order too.
UPDATE redis_epoch
SET written = false, lost = coalesce(lost, epoch), lost_why = 'workers of a newer version have stored epochs of partitions',
    rebuilder = 'a newer version', leased_until = 'infinity', progress = 'upgrade this worker'
WHERE leased_until IS DISTINCT FROM 'infinity'
