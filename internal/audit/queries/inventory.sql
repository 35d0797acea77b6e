-- Reads the capacity of slots.
-- $1 resource_id[], null = all
-- Returns resource_id, slot, capacity.
SELECT resource_id, slot, capacity FROM inventory WHERE $1::text[] IS NULL OR resource_id = ANY ($1)
