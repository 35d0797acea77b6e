-- Registers a worker, also one that was forgotten.
-- $1 id
INSERT INTO workers (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET forgotten_at = NULL, drained = '{}'
