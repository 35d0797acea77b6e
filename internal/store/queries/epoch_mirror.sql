-- Stores what all partitions have in common, once their first epoch is complete on one server, in the row that workers
-- of the version before read, unless that row is retired. Changes nothing while the partitions differ.
UPDATE redis_epoch AS r SET written = true, server = p.server
FROM (
    SELECT min(epoch) AS epoch, min(server) AS server FROM partition_epochs
    HAVING bool_and(written) AND count(DISTINCT (epoch, server)) = 1
) AS p
WHERE r.leased_until IS DISTINCT FROM 'infinity' AND r.epoch = p.epoch
    AND (NOT r.written OR r.server IS DISTINCT FROM p.server)
