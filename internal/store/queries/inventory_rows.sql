-- Reads capacity and reserved of slots of several resources.
-- $1 resource_id[]  $2 first slot[]  $3 last slot[]   (runs of slots in the order of the collation)
-- Returns n (the run, from 1), slot, capacity, reserved, whether the resource has lost commits; no row for a slot without
-- inventory. Nothing is left of a resource with lost commits: its capacity is what is reserved.
--
-- Each run is found by the primary key. The planner would read the whole table for a plain join
-- while it has no statistics of it: OFFSET 0 prevents that join.
SELECT want.n, i.slot,
    CASE WHEN lost.commits THEN i.reserved ELSE i.capacity END AS capacity,
    i.reserved, lost.commits
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS want (resource_id, first, last, n)
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM lost_commits WHERE resource_id = want.resource_id) AS commits
    OFFSET 0
) AS lost
CROSS JOIN LATERAL (
    SELECT slot, capacity, reserved FROM inventory
    WHERE resource_id = want.resource_id AND slot BETWEEN want.first AND want.last
    OFFSET 0
) AS i
