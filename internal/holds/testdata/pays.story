# A paid hold becomes one reservation, and later events do not change it.
double has 2 of 2026-12-01..2026-12-03                -> inventory.updated
ana books double 2026-12-01..2026-12-03 for 60s       -> hold.created H1
ana pays for H1 with P1                               -> hold.confirmed
H1 is                                                 -> confirmed
left of double 2026-12-01..2026-12-03                 -> 1 1
10m passes
the worker sweeps                                     -> hold.expired
ana pays for H1 with P1                               -> hold.confirmed
ana pays for H1 with P2                               -> hold.confirm_rejected already_confirmed
ana cancels H1                                        -> hold.release_rejected confirmed
ana books double 2026-12-01..2026-12-03               -> hold.created H2   # a paid hold is no longer live
ben books double 2026-12-02..2026-12-03               -> hold.rejected sold_out 2026-12-02:2/1/1 retry in 10m0s
double has 0 of 2026-12-01..2026-12-03                -> inventory.rejected below_reserved
ana pays for H9 with P3                               -> hold.confirm_rejected unknown_hold
25h passes
the worker sweeps                                     -> hold.expired H2
H1 is                                                 -> forgotten
ana pays for H1 with P1                               -> hold.confirmed    # Postgres keeps the answer
ana pays for H1 with P4                               -> hold.confirm_rejected already_confirmed
