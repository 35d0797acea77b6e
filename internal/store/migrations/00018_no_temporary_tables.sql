-- +goose Up

-- begin_with_what_is_reserved runs with the rights of its owner. Unless its path names pg_temp, last, temporary tables of
-- the session have precedence over those of the schema: a role that may only insert slots could run its own triggers so.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION begin_with_what_is_reserved() SET search_path = %I, pg_temp', current_schema());
END
$$;
-- +goose StatementEnd
