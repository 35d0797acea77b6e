-- +goose Up

-- A row that is deleted and inserted again must not forget what is reserved. So a row stays while
-- something of it is reserved.
-- +goose StatementBegin
CREATE FUNCTION refuse_while_reserved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'slot % of resource % is neither deleted nor renamed: % of it are reserved',
        OLD.slot, OLD.resource_id, OLD.reserved
        USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
            HINT = 'To sell no more of it, set its capacity to what is reserved. '
                'To delete it, have its reservations cancelled first.';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER a_slot_with_reservations_stays BEFORE DELETE OR UPDATE OF resource_id, slot ON inventory FOR EACH ROW
    WHEN (old.reserved > 0) EXECUTE FUNCTION refuse_while_reserved();

-- And a row that was deleted all the same (before this migration, by TRUNCATE, without triggers) begins with what
-- is reserved. It locks those reservations, so that none is cancelled meanwhile. Upstream may not read them:
-- the function runs with the rights of its owner.
-- +goose StatementBegin
CREATE FUNCTION begin_with_what_is_reserved() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    WITH found AS MATERIALIZED (
        SELECT r.resource_id, r.slots, r.quantity
        FROM reservations AS r
        WHERE r.status = 'confirmed'
            AND r.resource_id IN (SELECT resource_id FROM inserted)
            AND r.slots && (SELECT array_agg(slot) FROM inserted)
        FOR SHARE OF r
    ), sums AS (
        SELECT i.resource_id, i.slot, sum(f.quantity) AS reserved
        FROM inserted AS i
        JOIN found AS f ON f.resource_id = i.resource_id AND i.slot = ANY (f.slots)
        GROUP BY i.resource_id, i.slot
    )
    UPDATE inventory AS i SET reserved = sums.reserved
    FROM sums
    WHERE i.resource_id = sums.resource_id AND i.slot = sums.slot;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER a_new_slot_begins_with_what_is_reserved AFTER INSERT ON inventory
    REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT
    EXECUTE FUNCTION begin_with_what_is_reserved();
