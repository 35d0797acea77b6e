-- Begins the next epoch of those of some partitions that need a rebuild and that no worker rebuilds. They get the same. Its
-- number is the time in ms, so that no epoch had it before, nor one that this server has lost. While the clock is behind the
-- last number, it is one more than that: then a lost one may come again.
-- A lease that excludes others for much longer than $3 is from before the clock was set back.
-- $1 partition[]  $2 rebuilder  $3 how long it excludes others (ms)
-- Returns partition, epoch of each partition in which it has begun.
WITH free AS (
    SELECT partition, generation FROM partition_epochs
    WHERE partition = ANY ($1::integer[]) AND NOT written
        AND (leased_until IS NULL OR leased_until NOT BETWEEN clock_timestamp()
            AND clock_timestamp() + $3 * interval '2 milliseconds')
    ORDER BY partition FOR UPDATE
), next AS (
    SELECT greatest(max(generation) + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS generation FROM free
)
UPDATE partition_epochs AS e
SET generation = next.generation, epoch = split_part(e.epoch, '/', 1) || '/' || next.generation,
    rebuilder = $2, leased_until = clock_timestamp() + $3 * interval '1 millisecond', progress = NULL
FROM free, next WHERE e.partition = free.partition
RETURNING e.partition, e.epoch
