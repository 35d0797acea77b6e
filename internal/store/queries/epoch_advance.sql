-- Makes the number of each later epoch higher than a number.
-- $1 number
UPDATE partition_epochs SET generation = $1
WHERE partition IN (SELECT partition FROM partition_epochs WHERE generation < $1 ORDER BY partition FOR UPDATE)
