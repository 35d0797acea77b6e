-- Sets the reserved number of a slot and notifies the workers, which may have the row in memory. They bump rev.
-- Fails with reserved_is_between_zero_and_capacity when it exceeds the capacity.
-- $1 resource_id  $2 slot  $3 reserved
WITH changed AS (
    UPDATE inventory SET reserved = $3, updated_at = now() WHERE resource_id = $1 AND slot = $2
    RETURNING resource_id
)
SELECT pg_notify(current_schema() || '_inventory', resource_id) FROM changed
