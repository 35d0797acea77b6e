-- Removes workers: those that have stopped, and those that must register again before they decide.
-- $1 id[]
DELETE FROM workers WHERE id = ANY ($1::text[])
