-- +goose Up

-- The schema of a namespace. It has the number 16 because it replaces the migrations 1 to 16 of the builds until 27
-- November 2026: databases that have those have all of it.

-- What may be sold of a slot, and what is. Upstream may write capacity at any time.
CREATE TABLE inventory (
    resource_id text NOT NULL,
    slot text NOT NULL,
    capacity bigint NOT NULL,
    reserved bigint NOT NULL DEFAULT 0,
    set_by_event_at timestamptz, -- when the inventory.set was stored that has set capacity, null: none has
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- Its position in the inbound stream. Of two such events the one stored later wins, whatever the clocks said: that of
    -- a stream created later, or of the same stream the one with the higher sequence.
    set_by_stream_created_at timestamptz,
    set_by_stream_seq bigint,
    set_in_stream_at timestamptz, -- the same as set_by_event_at: the build of 27 November 2026 compares the two
    CONSTRAINT inventory_has_one_row_per_resource_and_slot PRIMARY KEY (resource_id, slot),
    CONSTRAINT reserved_is_between_zero_and_capacity CHECK (reserved BETWEEN 0 AND capacity)
);

-- What was paid. The id is that of the hold it was.
CREATE TABLE reservations (
    hold_id text NOT NULL,
    resource_id text NOT NULL,
    user_id text NOT NULL,
    slots text[] NOT NULL,
    quantity bigint NOT NULL,
    payment_id text NOT NULL,
    request_key text NOT NULL,
    status text NOT NULL DEFAULT 'confirmed',
    confirmed_at timestamptz NOT NULL,
    cancelled_at timestamptz, -- read from Redis' clock after the commit
    cancelled_by text, -- the event
    cancel_reason text,
    CONSTRAINT a_hold_becomes_one_reservation PRIMARY KEY (hold_id),
    CONSTRAINT quantity_is_positive CHECK (quantity > 0),
    CONSTRAINT status_is_confirmed_or_cancelled CHECK (status IN ('confirmed', 'cancelled')),
    CONSTRAINT only_a_cancelled_reservation_has_cancelled_at CHECK (status = 'cancelled' OR cancelled_at IS NULL),
    CONSTRAINT only_a_cancelled_reservation_has_cancelled_by CHECK (status = 'cancelled' OR cancelled_by IS NULL)
);
CREATE INDEX reservations_of_a_resource ON reservations (resource_id, confirmed_at);
CREATE INDEX reservations_of_a_user ON reservations (user_id, confirmed_at);

-- The permanent answer to every payment, those for unknown holds included.
CREATE TABLE payments (
    hold_id text NOT NULL,
    payment_id text NOT NULL,
    outcome text NOT NULL,
    reason text,
    decided_at timestamptz NOT NULL,
    amount text,
    currency text,
    hold json NOT NULL, -- what the answer says of the hold (json, not jsonb: it is repeated unchanged)
    late boolean NOT NULL DEFAULT false, -- it came after its hold had expired, and found the slots free
    CONSTRAINT a_payment_of_a_hold_has_one_answer PRIMARY KEY (hold_id, payment_id),
    CONSTRAINT outcome_is_confirmed_or_rejected CHECK (outcome IN ('confirmed', 'rejected')),
    CONSTRAINT only_a_rejected_payment_has_a_reason CHECK ((outcome = 'rejected') = (reason IS NOT NULL)),
    CONSTRAINT only_a_confirmed_payment_is_late CHECK (outcome = 'confirmed' OR NOT late)
);

-- The answer to every inventory.set and reservation.cancelled, so that one that is delivered again neither undoes a
-- later one nor answers otherwise. Workers remove old answers, a few at a time.
CREATE TABLE event_answers (
    cause text NOT NULL,
    resource_id text NOT NULL,
    answer json NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT an_event_has_one_answer PRIMARY KEY (cause)
);
CREATE INDEX event_answers_by_age ON event_answers (decided_at);

-- The policies that were in force, each from a time on; the first also before. Every worker decides an event by
-- the policy that was in force when the event was stored, whatever its own settings are: so each
-- delivery has the same answer. `worker migrate` adds a row when the settings have changed.
CREATE TABLE policies (
    since timestamptz NOT NULL,
    settings jsonb NOT NULL, -- text by the name of its flag
    CONSTRAINT one_policy_is_in_force_at_a_time PRIMARY KEY (since)
);

-- The epoch of each partition of Redis: one shard of a cluster, or one partition, may be lost and rebuilt while the
-- others go on.
CREATE TABLE partition_epochs (
    partition integer NOT NULL,
    -- A UUID, which all partitions of a database share, or that UUID, a slash and the number of the epoch.
    epoch text NOT NULL,
    generation bigint NOT NULL DEFAULT 1,
    -- False until Redis has everything that was written under the epoch.
    written boolean NOT NULL DEFAULT false,
    -- Which server has the epoch. Null: unknown.
    server text,
    -- While it is not written: the last epoch that was, why it is not any more, who rebuilds the partition, until when
    -- no other worker may, and how far the rebuild is.
    lost text,
    lost_why text,
    rebuilder text,
    leased_until timestamptz,
    progress text,
    CONSTRAINT a_partition_has_one_epoch PRIMARY KEY (partition)
);
INSERT INTO partition_epochs (partition, epoch)
SELECT p, first.epoch FROM generate_series(0, 63) AS p, (SELECT gen_random_uuid() AS epoch) AS first;

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

-- Work that one of several workers does at a time, and until when it does, by the clock of this server.
CREATE TABLE leases (
    name text NOT NULL,
    holder text NOT NULL,
    held_until timestamptz NOT NULL,
    CONSTRAINT a_lease_has_one_holder PRIMARY KEY (name)
);

-- What fencing tokens are counted from each time that Redis has lost its count: a sequence never
-- goes back, so a token of before the loss is lower than any after it.
CREATE SEQUENCE lock_fence_bases MINVALUE 1;

-- Which history of commits this database has, and how much of the outbound stream is certainly in it. After a failover to
-- a standby, or a restore, the server is another one than the row says: then the outcomes that were published after
-- the marker are compared with the tables before anything is granted.
CREATE TABLE commit_marker (
    only_row boolean NOT NULL DEFAULT true,
    history text NOT NULL, -- changes with each comparison
    server text NOT NULL, -- system identifier, a slash, and the timeline (8 hexadecimal digits)
    -- Every outcome of that stream up to seq follows from a commit in this database. Null: no worker has written it.
    stream_created_at timestamptz,
    seq bigint NOT NULL DEFAULT 0,
    marked_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT there_is_one_commit_marker PRIMARY KEY (only_row),
    CONSTRAINT there_is_only_one_commit_marker CHECK (only_row)
);
INSERT INTO commit_marker (history, server)
SELECT gen_random_uuid(), system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system();

-- Published outcomes whose commit was lost and could not be put back, each with the reason. Nothing is granted on a
-- resource that has one. Workers try again, and remove what they have put back.
CREATE TABLE lost_commits (
    outcome_id text NOT NULL,
    resource_id text NOT NULL,
    event text NOT NULL,
    reason text NOT NULL,
    outcome json NOT NULL, -- what is needed to put it back
    noticed_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT an_outcome_is_lost_once PRIMARY KEY (outcome_id)
);
CREATE INDEX lost_commits_of_a_resource ON lost_commits (resource_id);

-- Migrations only add, so programs of the version before work on: those that know this schema version or a higher
-- one. A migration that such programs would misread, or write against, raises it: they stop, and refuse to start.
CREATE TABLE schema_compatibility (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_one_compatibility CHECK (only_row),
    works_from bigint NOT NULL
);
INSERT INTO schema_compatibility (works_from) VALUES (16);

-- A row that is deleted and inserted again must not forget what is reserved. So a row stays while
-- something of it is reserved.
-- +goose StatementBegin
CREATE FUNCTION refuse_while_reserved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'slot % of resource % is neither deleted nor renamed: % of it are reserved',
        OLD.slot, OLD.resource_id, OLD.reserved
        USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA,
            HINT = 'To sell no more of it, set its capacity to what is reserved. '
                'To delete it, have its reservations cancelled first.';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER a_slot_with_reservations_stays BEFORE DELETE OR UPDATE OF resource_id, slot ON inventory FOR EACH ROW
    WHEN (old.reserved > 0) EXECUTE FUNCTION refuse_while_reserved();

-- And a row that was deleted all the same (by TRUNCATE, without triggers) begins with what
-- is reserved. It locks those reservations, so that none is cancelled meanwhile. Upstream may not read them:
-- the function runs with the rights of its owner.
-- +goose StatementBegin
CREATE FUNCTION begin_with_what_is_reserved() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    WITH found AS MATERIALIZED (
        SELECT r.resource_id, r.slots, r.quantity
        FROM reservations AS r
        WHERE r.status = 'confirmed'
            AND r.resource_id IN (SELECT resource_id FROM inserted)
            AND r.slots && (SELECT array_agg(slot) FROM inserted)
        FOR SHARE OF r
    ), sums AS (
        SELECT i.resource_id, i.slot, sum(f.quantity) AS reserved
        FROM inserted AS i
        JOIN found AS f ON f.resource_id = i.resource_id AND i.slot = ANY (f.slots)
        GROUP BY i.resource_id, i.slot
    )
    UPDATE inventory AS i SET reserved = sums.reserved
    FROM sums
    WHERE i.resource_id = sums.resource_id AND i.slot = sums.slot;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER a_new_slot_begins_with_what_is_reserved AFTER INSERT ON inventory
    REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT
    EXECUTE FUNCTION begin_with_what_is_reserved();

-- Workers have rows of inventory in memory, and capacity counts however it was written: they listen on the channel
-- <schema>_inventory. The payload is the resource.
-- +goose StatementBegin
CREATE FUNCTION tell_that_inventory_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_TABLE_SCHEMA || '_inventory', coalesce(NEW.resource_id, OLD.resource_id));
    RETURN NULL;
END
$$;
-- +goose StatementEnd
-- An empty payload says that any row may have changed.
-- +goose StatementBegin
CREATE FUNCTION notify_of_all_inventory() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_TABLE_SCHEMA || '_inventory', '');
    RETURN NULL;
END
$$;
-- +goose StatementEnd
-- A payload has less than 8000 bytes; longer ids are no resource's. A trigger BEFORE UPDATE may change columns that the
-- statement does not name, and UPDATE OF does not see that.
CREATE TRIGGER a_changed_capacity_is_told AFTER UPDATE ON inventory FOR EACH ROW
    WHEN (new.capacity IS DISTINCT FROM old.capacity AND length(new.resource_id) <= 64)
    EXECUTE FUNCTION tell_that_inventory_changed();
CREATE TRIGGER a_new_slot_is_told AFTER INSERT ON inventory FOR EACH ROW
    WHEN (length(new.resource_id) <= 64) EXECUTE FUNCTION tell_that_inventory_changed();
CREATE TRIGGER a_deleted_slot_is_told AFTER DELETE ON inventory FOR EACH ROW
    WHEN (length(old.resource_id) <= 64) EXECUTE FUNCTION tell_that_inventory_changed();
-- A row that gets another name or another resource is none of those that workers know. An UPDATE that sets the same names
-- again changes none. TRUNCATE fires no trigger for a row.
CREATE TRIGGER a_renamed_slot_is_notified AFTER UPDATE ON inventory FOR EACH ROW
    WHEN ((old.resource_id, old.slot) IS DISTINCT FROM (new.resource_id, new.slot))
    EXECUTE FUNCTION notify_of_all_inventory();
CREATE TRIGGER a_truncation_is_notified AFTER TRUNCATE ON inventory FOR EACH STATEMENT EXECUTE FUNCTION notify_of_all_inventory();
CREATE TRIGGER a_lost_commit_is_notified AFTER INSERT OR DELETE ON lost_commits FOR EACH ROW
    EXECUTE FUNCTION tell_that_inventory_changed();
-- Subscriptions of logical replication, and sessions with session_replication_role = replica, fire no other triggers.
ALTER TABLE inventory
    ENABLE ALWAYS TRIGGER a_changed_capacity_is_told,
    ENABLE ALWAYS TRIGGER a_new_slot_is_told,
    ENABLE ALWAYS TRIGGER a_deleted_slot_is_told,
    ENABLE ALWAYS TRIGGER a_truncation_is_notified,
    ENABLE ALWAYS TRIGGER a_renamed_slot_is_notified;
