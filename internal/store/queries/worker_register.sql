-- Registers a worker. It does nothing when the worker is registered.
-- $1 id
INSERT INTO workers (id) SELECT $1 WHERE NOT EXISTS (SELECT FROM workers WHERE id = $1)
