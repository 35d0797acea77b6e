-- Registers a worker.
-- $1 id
INSERT INTO workers (id) VALUES ($1) ON CONFLICT DO NOTHING
