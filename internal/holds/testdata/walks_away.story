# A hold that is not paid expires.
double has 1 of 2026-12-01..2026-12-04            -> inventory.updated
ana books double 2026-12-01..2026-12-04 for 60s   -> hold.created H1
left of double 2026-12-01..2026-12-04             -> 0 0 0
59s passes
H1 is                                             -> held
ben books double 2026-12-03..2026-12-05           -> hold.rejected unknown_resource
double has 1 of 2026-12-04..2026-12-05            -> inventory.updated
ben books double 2026-12-03..2026-12-05           -> hold.rejected sold_out 2026-12-03:1/0/1 retry in 1s
1s passes                                         # without a sweep:
H1 is                                             -> expired
left of double 2026-12-01..2026-12-04             -> 1 1 1
ben books double 2026-12-03..2026-12-05           -> hold.created H2
the worker sweeps                                 -> hold.expired H1
the worker sweeps                                 -> hold.expired
ana pays for H1 with P1                           -> hold.confirm_rejected expired
ana cancels H1                                    -> hold.release_rejected expired
ben cancels H2                                    -> hold.released
nothing is left of double
24h passes
the worker sweeps                                 -> hold.expired
H1 is                                             -> forgotten
