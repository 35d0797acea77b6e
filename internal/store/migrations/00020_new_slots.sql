-- +goose Up

-- A new slot begins with what is reserved. This reads the reservations of the resources that got slots and of no others,
-- resource by resource (OFFSET 0 keeps the planner from joining all), and locks those that have a new slot. EXECUTE plans for
-- the rows of each statement: a stored plan would be that of the session's first one, mostly of a single slot.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION begin_with_what_is_reserved() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    EXECUTE $statement$
        WITH taken AS MATERIALIZED (
            SELECT r.hold_id
            FROM (SELECT DISTINCT resource_id FROM inserted) AS of
            CROSS JOIN LATERAL (
                SELECT hold_id, slots FROM reservations
                WHERE resource_id = of.resource_id AND status = 'confirmed' OFFSET 0
            ) AS r
            CROSS JOIN LATERAL unnest(r.slots) AS s (slot)
            JOIN inserted AS i ON i.resource_id = of.resource_id AND i.slot = s.slot
        ), found AS MATERIALIZED (
            SELECT resource_id, slots, quantity FROM reservations
            WHERE hold_id = ANY (ARRAY(SELECT hold_id FROM taken)) AND status = 'confirmed'
            FOR SHARE
        ), sums AS (
            SELECT i.resource_id, i.slot, sum(f.quantity) AS reserved
            FROM found AS f
            CROSS JOIN LATERAL unnest(f.slots) AS s (slot)
            JOIN inserted AS i ON i.resource_id = f.resource_id AND i.slot = s.slot
            GROUP BY i.resource_id, i.slot
        )
        UPDATE inventory AS i SET reserved = sums.reserved
        FROM sums
        WHERE i.resource_id = sums.resource_id AND i.slot = sums.slot
    $statement$;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
-- As in migration 18, which says why.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION begin_with_what_is_reserved() SET search_path = %I, pg_temp', current_schema());
END
$$;
-- +goose StatementEnd
