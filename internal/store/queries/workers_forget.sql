-- Forgets workers that have not said that they publish nothing more of what was decided before some new epochs. They
-- must register again before they decide. Removes those that were forgotten long ago.
-- $1 id[]  $2 "partition epoch"[], null = whatever they have said  $3 how long ago (ms)
WITH old AS (
    DELETE FROM workers WHERE forgotten_at < clock_timestamp() - $3 * interval '1 millisecond'
)
UPDATE workers SET forgotten_at = clock_timestamp()
WHERE id = ANY ($1::text[]) AND forgotten_at IS NULL AND coalesce(NOT drained @> $2::text[], true)
