-- +goose Up

-- Work that one of several workers does at a time, and until when it does, by the clock of this server.
CREATE TABLE leases (
    name text NOT NULL,
    holder text NOT NULL,
    held_until timestamptz NOT NULL,
    CONSTRAINT a_lease_has_one_holder PRIMARY KEY (name)
);
