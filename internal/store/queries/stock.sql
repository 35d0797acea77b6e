-- Reads capacity and reserved of slots of several resources.
-- $1 resource_id[]  $2 slot[]   (pairs)
-- Returns n (the pair, from 1), capacity, reserved; no row for a pair without inventory. Nothing is left of a resource
-- with lost commits: its capacity is what is reserved.
--
-- Each pair is found by the primary key. The planner would read the whole table for a plain join
-- while it has no statistics of it.
SELECT want.n,
    CASE WHEN EXISTS (SELECT FROM lost_commits AS l WHERE l.resource_id = want.resource_id)
        THEN i.reserved ELSE i.capacity END AS capacity,
    i.reserved
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS want (resource_id, slot, n)
CROSS JOIN LATERAL (
    SELECT capacity, reserved FROM inventory
    WHERE resource_id = want.resource_id AND slot = want.slot
    LIMIT 1 -- prevents the planner from using that join
) AS i
