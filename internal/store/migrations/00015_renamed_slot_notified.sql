-- +goose Up

-- Workers have rows of inventory in memory. A row that gets another name or another resource is none of those that they
-- know: as after TRUNCATE, any row may have changed. An UPDATE that sets the same names again changes none.
CREATE TRIGGER a_renamed_slot_is_notified AFTER UPDATE OF resource_id, slot ON inventory FOR EACH ROW
    WHEN ((old.resource_id, old.slot) IS DISTINCT FROM (new.resource_id, new.slot))
    EXECUTE FUNCTION notify_of_all_inventory();
