-- Removes a worker that has published everything.
-- $1 id
DELETE FROM workers WHERE id = $1
