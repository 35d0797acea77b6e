-- Removes rows of nights that are long past and of which nothing is reserved. A slot with another name is none, and
-- neither is a row that a reservation uses.
-- $1 how many days ago the night was, at least  $2 how many rows, at most
-- Affects one row a night.
WITH past AS MATERIALIZED (
    SELECT resource_id, slot FROM inventory
    WHERE slot ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$'
        AND slot COLLATE "C" < to_char((now() AT TIME ZONE 'UTC') - $1 * interval '1 day', 'YYYY-MM-DD')
        AND reserved = 0
    ORDER BY resource_id, slot
    LIMIT $2
)
DELETE FROM inventory AS i USING past
WHERE i.resource_id = past.resource_id AND i.slot = past.slot AND i.reserved = 0
