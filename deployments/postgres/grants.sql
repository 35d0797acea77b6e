-- Who may do what in Postgres, part 2: privileges. Run it after each worker migrate, as holdfast_migrator.
-- Running it again changes nothing; what it does not grant is revoked.
--
-- What is not allowed is refused with `permission denied for table NAME (SQLSTATE 42501)`, and events wait.
-- worker preflight --no-migrate tells which GRANT is missing, before.

BEGIN; -- so that a running worker never has less than it needs

REVOKE ALL ON ALL TABLES IN SCHEMA holdfast FROM PUBLIC, holdfast_worker, holdfast_upstream, holdfast_auditor;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA holdfast FROM PUBLIC, holdfast_worker, holdfast_upstream, holdfast_auditor;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA holdfast FROM PUBLIC, holdfast_worker, holdfast_upstream, holdfast_auditor;
REVOKE ALL ON SCHEMA holdfast FROM PUBLIC, holdfast_worker, holdfast_upstream, holdfast_auditor;
GRANT USAGE ON SCHEMA holdfast TO holdfast_worker, holdfast_upstream, holdfast_auditor;

-- worker run --no-migrate. LISTEN needs no privilege, and triggers run without any on their functions.
GRANT SELECT ON holdfast.inventory TO holdfast_worker;
GRANT INSERT (resource_id, slot, capacity,
    set_by_event_at, set_in_stream_at, set_by_stream_created_at, set_by_stream_seq)
    ON holdfast.inventory TO holdfast_worker;                           -- inventory.set
GRANT UPDATE (capacity, reserved, updated_at,
    set_by_event_at, set_in_stream_at, set_by_stream_created_at, set_by_stream_seq)
    ON holdfast.inventory TO holdfast_worker;                           -- and payments
GRANT SELECT ON holdfast.reservations TO holdfast_worker;
GRANT INSERT (hold_id, resource_id, user_id, slots, quantity, payment_id, request_key, confirmed_at)
    ON holdfast.reservations TO holdfast_worker;
GRANT UPDATE (status, cancelled_by, cancel_reason, cancelled_at) ON holdfast.reservations TO holdfast_worker; -- reservation.cancelled
GRANT SELECT ON holdfast.payments TO holdfast_worker;
GRANT INSERT ON holdfast.payments TO holdfast_worker;                   -- an answer is for ever: no UPDATE
GRANT SELECT ON holdfast.event_answers TO holdfast_worker;
GRANT INSERT (cause, resource_id, answer) ON holdfast.event_answers TO holdfast_worker;
GRANT DELETE ON holdfast.event_answers TO holdfast_worker;              -- old ones: docs/storage.md
-- Removes rows of nights of 400 days ago and more, of which nothing is reserved. Without this line they stay.
GRANT DELETE ON holdfast.inventory TO holdfast_worker;
GRANT SELECT ON holdfast.redis_epoch TO holdfast_worker;
GRANT UPDATE (epoch, generation, written, server, lost, lost_why, rebuilder, leased_until, progress)
    ON holdfast.redis_epoch TO holdfast_worker;                         -- when Redis has lost its data; and FOR SHARE
GRANT SELECT ON holdfast.policies TO holdfast_worker;                   -- worker migrate stores them
GRANT SELECT ON holdfast.leases TO holdfast_worker;
GRANT INSERT (name, holder, held_until) ON holdfast.leases TO holdfast_worker;
GRANT UPDATE (holder, held_until) ON holdfast.leases TO holdfast_worker;   -- what one worker does at a time
GRANT USAGE ON SEQUENCE holdfast.lock_fence_bases TO holdfast_worker;   -- lock strategy range
GRANT SELECT ON holdfast.goose_db_version TO holdfast_worker;           -- the version of the schema, at each start
GRANT SELECT ON holdfast.schema_compatibility TO holdfast_worker;       -- which versions of workers it is for, always

-- Upstream writes capacity by SQL at any time.
GRANT SELECT (resource_id, slot, capacity, reserved), INSERT (resource_id, slot, capacity), UPDATE (capacity)
    ON holdfast.inventory TO holdfast_upstream;

-- Reads everything, metadata and user ids too.
GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO holdfast_auditor;
GRANT SELECT ON SEQUENCE holdfast.lock_fence_bases TO holdfast_auditor;

COMMIT;
