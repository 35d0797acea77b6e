-- +goose Up

-- A reservation is cancelled by an event, and only then it is known when: cancelled_at is read
-- from Redis' clock after the commit.
ALTER TABLE reservations
    ADD COLUMN cancelled_by text,
    ADD COLUMN cancel_reason text,
    DROP CONSTRAINT only_a_cancelled_reservation_has_cancelled_at,
    ADD CONSTRAINT only_a_cancelled_reservation_has_cancelled_at CHECK (status = 'cancelled' OR cancelled_at IS NULL),
    ADD CONSTRAINT only_a_cancelled_reservation_has_cancelled_by CHECK (status = 'cancelled' OR cancelled_by IS NULL);

-- A payment that came after its hold had lapsed, and found the slots free.
ALTER TABLE payments
    ADD COLUMN late boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT only_a_confirmed_payment_is_late CHECK (outcome = 'confirmed' OR NOT late);

-- The answer to every inventory.set and reservation.cancelled, so that one that is delivered again
-- neither undoes a later one nor answers otherwise.
ALTER TABLE inventory_changes RENAME TO event_answers;
ALTER TABLE event_answers RENAME CONSTRAINT an_inventory_event_has_one_answer TO an_event_has_one_answer;

-- Upstream may write capacity at any time: workers listen on the channel <schema>_inventory, and
-- whoever has read the old one decides again.
-- +goose StatementBegin
CREATE FUNCTION tell_that_inventory_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_TABLE_SCHEMA || '_inventory', coalesce(NEW.resource_id, OLD.resource_id));
    RETURN NULL;
END
$$;
-- +goose StatementEnd
-- A payload has less than 8000 bytes; longer ids are no resource's.
CREATE TRIGGER a_changed_capacity_is_told AFTER UPDATE OF capacity ON inventory FOR EACH ROW
    WHEN (new.capacity IS DISTINCT FROM old.capacity AND length(new.resource_id) <= 64)
    EXECUTE FUNCTION tell_that_inventory_changed();
CREATE TRIGGER a_new_slot_is_told AFTER INSERT ON inventory FOR EACH ROW
    WHEN (length(new.resource_id) <= 64) EXECUTE FUNCTION tell_that_inventory_changed();
CREATE TRIGGER a_deleted_slot_is_told AFTER DELETE ON inventory FOR EACH ROW
    WHEN (length(old.resource_id) <= 64) EXECUTE FUNCTION tell_that_inventory_changed();
