-- Reports whether a worker is registered.
-- $1 id
SELECT EXISTS (SELECT FROM workers WHERE id = $1 AND forgotten_at IS NULL)
