-- +goose Up

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

-- Workers have rows of inventory in memory.
CREATE TRIGGER a_lost_commit_is_notified AFTER INSERT OR DELETE ON lost_commits FOR EACH ROW
    EXECUTE FUNCTION tell_that_inventory_changed();
