-- +goose Up

-- Workers remove elapsed nights that were not set or sold for long, by updated_at. Upstream may write capacity alone, by
-- a role that may not write updated_at. An update of reserved does not fire this.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_when_set() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER a_set_capacity_is_dated BEFORE UPDATE OF capacity ON inventory FOR EACH ROW
    WHEN (new.updated_at IS NOT DISTINCT FROM old.updated_at) EXECUTE FUNCTION note_when_set();
ALTER TABLE inventory ENABLE ALWAYS TRIGGER a_set_capacity_is_dated;
