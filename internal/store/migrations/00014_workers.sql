-- +goose Up

-- The workers that decide. A recovery of Redis need not wait until none may publish what it decided before the loss,
-- once each has said that it publishes nothing of that any more.
CREATE TABLE workers (
    id text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    -- Of which new epochs it has said so: each is the partition, a space, and the epoch.
    drained text[] NOT NULL DEFAULT '{}',
    -- When a recovery had waited for it in vain. Null: it is registered.
    forgotten_at timestamptz,
    CONSTRAINT a_worker_is_registered_once PRIMARY KEY (id)
);
