-- Lists the resources that have inventory, in the order of their ids.
-- $1 prefix of their ids  $2 resource_id: only those after it  $3 maximum number of rows  $4 maximum number of resources read
-- Returns resource_id, slots, capacity, reserved of each: the number of its slots, and sums over them,
-- which are at most the largest bigint; then whether its id has the prefix, and whether it is number $4. That one is
-- returned in any case.
--
-- It finds each next resource by the primary key, so it reads the rows of the returned resources and, when a prefix is
-- given, one row of each resource between them. It begins at the prefix, because no text comes before its own prefix. A
-- collation may place other ids between those with the prefix.
WITH RECURSIVE ids AS (
    (SELECT resource_id, starts_with(resource_id, $1) AS wanted, 1 AS number FROM inventory
     WHERE resource_id > $2 AND resource_id >= $1 ORDER BY resource_id LIMIT 1)
    UNION ALL
    SELECT n.resource_id, starts_with(n.resource_id, $1), ids.number + 1 FROM ids
    CROSS JOIN LATERAL (
        SELECT resource_id FROM inventory WHERE resource_id > ids.resource_id ORDER BY resource_id LIMIT 1
    ) AS n
    WHERE ids.number < $4
)
SELECT w.resource_id, s.slots, s.capacity, s.reserved, w.wanted, w.number = $4
FROM (SELECT resource_id, wanted, number FROM ids WHERE wanted OR number = $4 LIMIT $3) AS w
CROSS JOIN LATERAL (
    SELECT count(*) AS slots, least(sum(capacity), 9223372036854775807)::bigint AS capacity,
           least(sum(reserved), 9223372036854775807)::bigint AS reserved
    FROM inventory WHERE resource_id = w.resource_id
) AS s
ORDER BY w.resource_id
