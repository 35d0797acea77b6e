-- Roles in Postgres, part 2: privileges. Run it after each worker migrate, as holdfast_migrator.
-- It can run again; it revokes every privilege that it does not grant.
--
-- Postgres refuses any other statement with `permission denied for table NAME (SQLSTATE 42501)`, and events wait.
-- worker preflight --no-migrate prints missing GRANT statements in advance.

BEGIN; -- so a running worker keeps its privileges all the time

REVOKE ALL ON ALL TABLES IN SCHEMA holdfast FROM PUBLIC, holdfast_worker, holdfast_upstream, holdfast_auditor;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA holdfast FROM PUBLIC, holdfast_worker, holdfast_upstream, holdfast_auditor;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA holdfast FROM PUBLIC, holdfast_worker, holdfast_upstream, holdfast_auditor;
REVOKE ALL ON SCHEMA holdfast FROM PUBLIC, holdfast_worker, holdfast_upstream, holdfast_auditor;
GRANT USAGE ON SCHEMA holdfast TO holdfast_worker, holdfast_upstream, holdfast_auditor;

-- worker run --no-migrate. LISTEN needs no privilege, and triggers need none on their functions.
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
GRANT INSERT ON holdfast.payments TO holdfast_worker;                   -- no UPDATE: an answer is permanent
GRANT SELECT ON holdfast.event_answers TO holdfast_worker;
GRANT INSERT (cause, resource_id, answer) ON holdfast.event_answers TO holdfast_worker;
GRANT DELETE ON holdfast.event_answers TO holdfast_worker;              -- of old answers: docs/storage.md
-- Removes nights older than 400 days without reservations. Without this line they stay.
GRANT DELETE ON holdfast.inventory TO holdfast_worker;
GRANT SELECT ON holdfast.redis_epoch TO holdfast_worker;
GRANT UPDATE (epoch, generation, written, server, lost, lost_why, rebuilder, leased_until, progress)
    ON holdfast.redis_epoch TO holdfast_worker;                         -- until the next release: the build of 27 November 2026 updates it
GRANT SELECT ON holdfast.partition_epochs TO holdfast_worker;
GRANT UPDATE (epoch, generation, written, server, lost, lost_why, rebuilder, leased_until, progress)
    ON holdfast.partition_epochs TO holdfast_worker;                    -- after a loss of Redis' data, and FOR SHARE
-- After a failover: which history of commits was compared, and what could not be put back. Worker and auditor also
-- call pg_control_system(), pg_current_wal_lsn() and pg_walfile_name(pg_lsn), which PUBLIC may do by default.
GRANT SELECT, INSERT (history, server), UPDATE (history, server, stream_created_at, seq, marked_at)
    ON holdfast.commit_marker TO holdfast_worker;
GRANT SELECT, INSERT (outcome_id, resource_id, event, reason, outcome), DELETE ON holdfast.lost_commits TO holdfast_worker;
GRANT SELECT ON holdfast.policies TO holdfast_worker;                   -- worker migrate stores them
GRANT SELECT ON holdfast.leases TO holdfast_worker;
GRANT INSERT (name, holder, held_until) ON holdfast.leases TO holdfast_worker;
GRANT UPDATE (holder, held_until) ON holdfast.leases TO holdfast_worker;   -- work of one worker at a time
GRANT SELECT, INSERT (id), UPDATE (drained, forgotten_at), DELETE ON holdfast.workers TO holdfast_worker; -- who may still publish
GRANT USAGE ON SEQUENCE holdfast.lock_fence_bases TO holdfast_worker;   -- lock strategy range
GRANT SELECT ON holdfast.goose_db_version TO holdfast_worker;           -- the version of the schema, at each start
GRANT SELECT ON holdfast.schema_compatibility TO holdfast_worker;       -- the worker versions that may use it

-- Upstream writes capacity by SQL at any time.
GRANT SELECT (resource_id, slot, capacity, reserved), INSERT (resource_id, slot, capacity), UPDATE (capacity)
    ON holdfast.inventory TO holdfast_upstream;

-- Reads all tables, including metadata and user ids.
GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO holdfast_auditor;
GRANT SELECT ON SEQUENCE holdfast.lock_fence_bases TO holdfast_auditor;

COMMIT;
