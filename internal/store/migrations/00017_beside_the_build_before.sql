-- +goose Up

-- Until the next release: what is needed as long as the build of 27 November 2026, with migrations 1 to 16, may run on
-- this schema.

-- It starts only where all its migrations are recorded.
INSERT INTO goose_db_version (version_id, is_applied)
SELECT version, true FROM generate_series(1, 15) AS version
WHERE NOT EXISTS (SELECT FROM goose_db_version AS g WHERE g.version_id = version);

-- It updates this table, which builds before it read: one epoch for all partitions. A row that is leased until infinity
-- it leaves as it is. Builds that decide by the row decide nothing any more.
CREATE TABLE IF NOT EXISTS redis_epoch (
    only_row boolean NOT NULL DEFAULT true,
    epoch text NOT NULL,
    partitions integer NOT NULL,
    written boolean NOT NULL DEFAULT false,
    generation bigint NOT NULL DEFAULT 1,
    server text,
    lost text,
    lost_why text,
    rebuilder text,
    leased_until timestamptz,
    progress text,
    CONSTRAINT there_is_one_epoch PRIMARY KEY (only_row),
    CONSTRAINT there_is_only_one_epoch CHECK (only_row)
);
DROP TRIGGER IF EXISTS partitions_follow ON redis_epoch;
DROP FUNCTION IF EXISTS follow_redis_epoch();
UPDATE redis_epoch
SET written = false, lost = coalesce(lost, epoch), lost_why = 'workers of a newer version have stored epochs of partitions',
    rebuilder = 'a newer version', leased_until = 'infinity', progress = 'upgrade this worker'
WHERE leased_until IS DISTINCT FROM 'infinity';

-- Its first worker inserted the first epoch.
INSERT INTO partition_epochs (partition, epoch)
SELECT p, first.epoch FROM generate_series(0, 63) AS p, (SELECT gen_random_uuid() AS epoch) AS first
ON CONFLICT DO NOTHING;

-- Builds that know no migration 16 stop.
UPDATE schema_compatibility SET works_from = greatest(works_from, 16);
