-- +goose Up

-- What may be sold of a slot, and what is. Upstream may write capacity at any time.
CREATE TABLE inventory (
    resource_id text NOT NULL,
    slot text NOT NULL,
    capacity bigint NOT NULL,
    reserved bigint NOT NULL DEFAULT 0,
    -- When the latest inventory.set that was applied was stored: an earlier one that is
    -- delivered later does not undo it. Null when none was.
    set_by_event_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
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
    cancelled_at timestamptz,
    CONSTRAINT a_hold_becomes_one_reservation PRIMARY KEY (hold_id),
    CONSTRAINT quantity_is_positive CHECK (quantity > 0),
    CONSTRAINT status_is_confirmed_or_cancelled CHECK (status IN ('confirmed', 'cancelled')),
    CONSTRAINT only_a_cancelled_reservation_has_cancelled_at CHECK ((status = 'cancelled') = (cancelled_at IS NOT NULL))
);
CREATE INDEX reservations_of_a_resource ON reservations (resource_id, confirmed_at);
CREATE INDEX reservations_of_a_user ON reservations (user_id, confirmed_at);

-- The permanent answer to every payment, those for unknown holds included. hold is what the
-- answer says of the hold, as it was said first (json, not jsonb: it is repeated unchanged).
CREATE TABLE payments (
    hold_id text NOT NULL,
    payment_id text NOT NULL,
    outcome text NOT NULL,
    reason text,
    decided_at timestamptz NOT NULL,
    amount text,
    currency text,
    hold json NOT NULL,
    CONSTRAINT a_payment_of_a_hold_has_one_answer PRIMARY KEY (hold_id, payment_id),
    CONSTRAINT outcome_is_confirmed_or_rejected CHECK (outcome IN ('confirmed', 'rejected')),
    CONSTRAINT only_a_rejected_payment_has_a_reason CHECK ((outcome = 'rejected') = (reason IS NOT NULL))
);

-- The answer to every inventory.set, so that one that is delivered again neither undoes a
-- later one nor answers otherwise.
CREATE TABLE inventory_changes (
    cause text NOT NULL,
    resource_id text NOT NULL,
    answer json NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT an_inventory_event_has_one_answer PRIMARY KEY (cause)
);

-- Proof of which Redis belongs to this database. One row; written is false until Redis has it.
CREATE TABLE redis_epoch (
    only_row boolean NOT NULL DEFAULT true,
    epoch text NOT NULL,
    partitions integer NOT NULL,
    written boolean NOT NULL DEFAULT false,
    CONSTRAINT there_is_one_epoch PRIMARY KEY (only_row),
    CONSTRAINT there_is_only_one_epoch CHECK (only_row)
);
