-- Reads the resources that have inventory, a page at a time. Each is one step down the index: the
-- rows of its other slots are not read.
-- $1 the last resource_id of the previous page, "" for the first page  $2 limit
-- Returns resource_id.
WITH RECURSIVE found (resource_id) AS (
    (SELECT resource_id FROM inventory WHERE resource_id > $1 ORDER BY resource_id LIMIT 1)
    UNION ALL
    SELECT (SELECT i.resource_id FROM inventory AS i WHERE i.resource_id > f.resource_id ORDER BY i.resource_id LIMIT 1)
    FROM found AS f
    WHERE f.resource_id IS NOT NULL
)
SELECT resource_id FROM found WHERE resource_id IS NOT NULL LIMIT $2
