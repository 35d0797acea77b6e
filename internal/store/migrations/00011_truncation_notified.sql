-- +goose Up

-- Workers have rows of inventory in memory. TRUNCATE fires no trigger for a row: an empty payload says that any row may
-- have changed.
-- +goose StatementBegin
CREATE FUNCTION notify_of_all_inventory() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_TABLE_SCHEMA || '_inventory', '');
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER a_truncation_is_notified AFTER TRUNCATE ON inventory FOR EACH STATEMENT EXECUTE FUNCTION notify_of_all_inventory();
