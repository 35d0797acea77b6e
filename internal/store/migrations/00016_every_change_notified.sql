-- +goose Up

-- Workers have rows of inventory in memory, and capacity counts however it was written. Subscriptions of logical
-- replication, and sessions with session_replication_role = replica, fire only triggers that are ENABLE ALWAYS. A
-- trigger BEFORE UPDATE may change columns that the statement does not name, and UPDATE OF does not see that. None of
-- this waits for readers, as DROP TRIGGER would.
CREATE OR REPLACE TRIGGER a_changed_capacity_is_told AFTER UPDATE ON inventory FOR EACH ROW
    WHEN (new.capacity IS DISTINCT FROM old.capacity AND length(new.resource_id) <= 64)
    EXECUTE FUNCTION tell_that_inventory_changed();
CREATE OR REPLACE TRIGGER a_renamed_slot_is_notified AFTER UPDATE ON inventory FOR EACH ROW
    WHEN ((old.resource_id, old.slot) IS DISTINCT FROM (new.resource_id, new.slot))
    EXECUTE FUNCTION notify_of_all_inventory();
ALTER TABLE inventory
    ENABLE ALWAYS TRIGGER a_changed_capacity_is_told,
    ENABLE ALWAYS TRIGGER a_new_slot_is_told,
    ENABLE ALWAYS TRIGGER a_deleted_slot_is_told,
    ENABLE ALWAYS TRIGGER a_truncation_is_notified,
    ENABLE ALWAYS TRIGGER a_renamed_slot_is_notified;
