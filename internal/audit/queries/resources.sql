-- Reads which resources there are, a page at a time.
-- $1 the last resource_id of the page before, "" = from the first on  $2 limit
-- Returns resource_id.
SELECT DISTINCT resource_id FROM inventory WHERE resource_id > $1 ORDER BY resource_id LIMIT $2
