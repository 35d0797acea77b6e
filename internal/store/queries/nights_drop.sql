-- Reads a page of inventory, and removes its rows of nights that are long past and have no reservation. It keeps slots whose
-- names are not dates of these centuries, and those that were set or sold since: stock may have a date as its name.
-- $1 minimum number of days since the night, and since the row was set or sold  $2 maximum number of rows of the page
-- $3 the worker's time: the earlier clock counts  $4 resource_id, $5 slot: only rows after them
-- Returns resource_id, slot of the last row of the page, and the number of rows that were removed; nothing if there is no row.
--
-- No index finds these nights, so a limit of the removed rows would bound neither what a statement reads nor its time.
WITH page AS MATERIALIZED (
    SELECT resource_id, slot, updated_at, reserved FROM inventory
    WHERE (resource_id, slot) > ($4, $5)
    ORDER BY resource_id, slot
    LIMIT $2
), past AS (
    SELECT resource_id, slot, updated_at FROM page
    WHERE slot ~ '^(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$'
        AND slot COLLATE "C" < to_char((least(now(), $3::timestamptz) AT TIME ZONE 'UTC') - $1 * interval '1 day', 'YYYY-MM-DD')
        AND updated_at < least(now(), $3::timestamptz) - $1 * interval '1 day'
        AND reserved = 0
), removed AS (
    DELETE FROM inventory AS i USING past
    WHERE i.resource_id = past.resource_id AND i.slot = past.slot AND i.reserved = 0 AND i.updated_at = past.updated_at
    RETURNING 1
)
SELECT resource_id, slot, (SELECT count(*) FROM removed) FROM page ORDER BY resource_id DESC, slot DESC LIMIT 1
