-- Takes or renews a lease, unless another holder has it. All take it for the same time: a lease that ends much later than that
-- is from before the clock was set back.
-- $1 name  $2 holder  $3 how long (ms)
-- Affects no row when another holder has it.
INSERT INTO leases AS l (name, holder, held_until) VALUES ($1, $2, clock_timestamp() + $3 * interval '1 millisecond')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until
WHERE l.holder = excluded.holder
    OR l.held_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + $3 * interval '2 milliseconds'
