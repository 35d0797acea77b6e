-- Makes the number of each later epoch higher than a number.
-- $1 number
UPDATE redis_epoch SET generation = $1 WHERE generation < $1
