-- Lists the slots of a resource that have inventory rows, in the order of their names.
-- $1 resource_id  $2 slot: only those after it  $3 maximum number of rows
-- Returns slot.
SELECT slot FROM inventory WHERE resource_id = $1 AND slot > $2 ORDER BY slot LIMIT $3
