-- Stores of which new epochs a worker publishes nothing any more that was decided before them.
-- $1 id  $2 "partition epoch"[]
UPDATE workers SET drained = $2 WHERE id = $1
