-- +goose Up

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
LOCK TABLE redis_epoch IN SHARE ROW EXCLUSIVE MODE; -- no worker changes it until the trigger exists
INSERT INTO partition_epochs (
    partition, epoch, generation, written, server, lost, lost_why, rebuilder, leased_until, progress)
SELECT p, e.epoch, e.generation, e.written, e.server, e.lost, e.lost_why, e.rebuilder, e.leased_until, e.progress
FROM redis_epoch AS e, generate_series(0, e.partitions - 1) AS p;

-- Workers of the version before know only redis_epoch, one row for all partitions. What they store there holds for
-- every partition, in the same step. The first worker of this version that invalidates an epoch retires that row
-- (leased_until is infinity): workers of the version before decide nothing any more, because partitions may differ.
-- SECURITY DEFINER: the role of the workers may lack privileges on partition_epochs until grants.sql has run.
-- +goose StatementBegin
CREATE FUNCTION follow_redis_epoch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO partition_epochs (
        partition, epoch, generation, written, server, lost, lost_why, rebuilder, leased_until, progress)
    SELECT p, NEW.epoch, NEW.generation, NEW.written, NEW.server, NEW.lost, NEW.lost_why, NEW.rebuilder,
        NEW.leased_until, NEW.progress
    FROM generate_series(0, NEW.partitions - 1) AS p
    ON CONFLICT (partition) DO UPDATE SET epoch = excluded.epoch, generation = excluded.generation,
        written = excluded.written, server = excluded.server, lost = excluded.lost, lost_why = excluded.lost_why,
        rebuilder = excluded.rebuilder, leased_until = excluded.leased_until, progress = excluded.progress;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER partitions_follow AFTER INSERT OR UPDATE ON redis_epoch FOR EACH ROW
    WHEN (NEW.leased_until IS DISTINCT FROM 'infinity') EXECUTE FUNCTION follow_redis_epoch();
