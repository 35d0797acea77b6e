-- Sets what is reserved of a slot. Fails with reserved_is_between_zero_and_capacity when there is not so much.
-- $1 resource_id  $2 slot  $3 reserved
UPDATE inventory SET reserved = $3, updated_at = now() WHERE resource_id = $1 AND slot = $2
