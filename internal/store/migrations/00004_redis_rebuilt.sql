-- +goose Up

-- When Redis has lost what was written to it, it is filled again, under a new epoch.
ALTER TABLE redis_epoch
    -- Counts the epochs: the first is a UUID, a later one that UUID, a slash and its number.
    ADD COLUMN generation bigint NOT NULL DEFAULT 1,
    -- Which server has the epoch; another one, or the same after a restart, may have older data.
    -- Null: it has not been looked at.
    ADD COLUMN server text,
    -- While it is not written: which was the last that was, why it is not any more, who fills Redis, until when it need not be asked whether it
    -- still does, and how far it is.
    ADD COLUMN lost text,
    ADD COLUMN lost_why text,
    ADD COLUMN rebuilder text,
    ADD COLUMN leased_until timestamptz,
    ADD COLUMN progress text;
