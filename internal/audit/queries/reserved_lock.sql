-- Locks an inventory row and reads its reserved number.
-- $1 resource_id  $2 slot
-- Returns reserved.
SELECT reserved FROM inventory WHERE resource_id = $1 AND slot = $2 FOR UPDATE
