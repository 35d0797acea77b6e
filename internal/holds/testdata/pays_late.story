# A payment for an expired hold is rejected, or takes its slots again if they are free.
double has 1 of A-1,A-2                       -> inventory.updated
ana books double A-1,A-2 for 60s              -> hold.created H1
1m passes
ana pays for H1 with P1                       -> hold.confirm_rejected expired
late payments are accepted if free
ana pays for H1 with P1                       -> hold.confirm_rejected expired     # the answer to a payment is permanent
left of double A-1,A-2                        -> 1 1
ana pays for H1 with P2                       -> hold.confirmed late
left of double A-1,A-2                        -> 0 0
H1 is                                         -> expired
the worker sweeps                             -> hold.expired H1
ana pays for H1 with P2                       -> hold.confirmed late
ana pays for H1 with P3                       -> hold.confirm_rejected already_confirmed
ben books double A-2                          -> hold.rejected sold_out A-2:1/1/0 retry never
the reservation of H1 is cancelled            -> reservation.cancelled
left of double A-1,A-2                        -> 1 1
ana pays for H1 with P4                       -> hold.confirm_rejected already_confirmed

ben books double A-2 for 60s                  -> hold.created H2
1m passes
cyd books double A-1,A-2 for 60s              -> hold.created H3
ben pays for H2 with P5                       -> hold.confirm_rejected sold_out
1m passes
ben pays for H2 with P5                       -> hold.confirm_rejected sold_out    # the answer is permanent
ben pays for H2 with P6                       -> hold.confirmed late
cyd pays for H3 with P7                       -> hold.confirm_rejected sold_out

# A late payment does not change the other holds of the user.
loft has 2 of A-1                             -> inventory.updated
dan books loft A-1 for 60s with key K         -> hold.created H4
1m passes
dan books loft A-1 for 60s with key L         -> hold.created H5
dan pays for H4 with P8                       -> hold.confirmed late
dan books loft A-1 for 60s with key M         -> hold.rejected already_holding H5
H5 is                                         -> held
dan pays for H5 with P9                       -> hold.confirmed
the worker sweeps                             -> hold.expired H2 H3 H4
nothing is left of loft
25h passes
the worker sweeps                             -> hold.expired
dan pays for H4 with P8                       -> hold.confirmed late               # Postgres keeps the answer
dan pays for H4 with PX                       -> hold.confirm_rejected already_confirmed
nothing is left of loft
nothing is left of double
