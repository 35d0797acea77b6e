-- +goose Up

-- The policies that were in force, each from a time on; the first also before. Every worker decides an event by
-- the policy that was in force when the event was stored, whatever its own settings are: so each
-- delivery has the same answer. `worker migrate` adds a row when the settings have changed.
CREATE TABLE policies (
    since timestamptz NOT NULL,
    settings jsonb NOT NULL, -- text by the name of its flag
    CONSTRAINT one_policy_is_in_force_at_a_time PRIMARY KEY (since)
);
