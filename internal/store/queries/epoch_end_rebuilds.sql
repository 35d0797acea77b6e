-- Ends the rebuilds that run: what they have read of payments may be lost. Later epochs get a number above the time in ms, also
-- of a worker of an earlier version, which counts: this server may have lost epochs.
UPDATE partition_epochs AS e
SET generation = greatest(e.generation, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
    rebuilder = NULL, leased_until = NULL, progress = NULL
FROM (SELECT partition FROM partition_epochs ORDER BY partition FOR UPDATE) AS all_of_them
WHERE e.partition = all_of_them.partition
