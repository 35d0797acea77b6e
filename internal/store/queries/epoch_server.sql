-- Stores which server has complete epochs, where the stored server is the expected one.
-- $1 partition[]  $2 epoch[]  $3 expected server[], "" = none  $4 server
-- Affects one row a partition; fewer when another worker has changed one.
UPDATE partition_epochs AS e SET server = $4
FROM (
    SELECT s.partition
    FROM partition_epochs AS s
    JOIN unnest($1::integer[], $2::text[], $3::text[]) AS i (partition, epoch, server) ON i.partition = s.partition
    WHERE s.epoch = i.epoch AND s.written AND coalesce(s.server, '') = i.server
    ORDER BY s.partition FOR UPDATE OF s
) AS mine
WHERE e.partition = mine.partition
