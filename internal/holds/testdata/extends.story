# A deadline moves to a later time, at most 90 minutes after the hold was created, and never back.
double has 1 of A-1,A-2                       -> inventory.updated
ana books double A-1,A-2 for 60s              -> hold.created H1
ana extends H1 by 10m                         -> hold.extended to 10m0s
30s passes
the event comes again                         -> hold.extended
ana extends H1 by 1m                          -> hold.extended to 9m30s   # the deadline was already later
ben books double A-1                          -> hold.rejected sold_out A-1:1/0/1 retry in 9m30s
ana extends H1 by 0s                          -> hold.extension_rejected invalid_request
ana extends H1 by 61m                         -> hold.extension_rejected invalid_request
9m passes
the worker sweeps                             -> hold.expired
H1 is                                         -> held
left of double A-1                            -> 0
ana extends H1 by 60m                         -> hold.extended to 1h0m0s
20m30s passes
ana extends H1 by 60m                         -> hold.extended to 1h0m0s    # up to the longest life
1s passes
ana extends H1 by 60m                         -> hold.extension_rejected limit_reached
ana extends H1 by 1m                          -> hold.extended to 59m59s    # nothing was changed
59m59s passes
ana extends H1 by 1m                          -> hold.extension_rejected expired
the event comes again                         -> hold.extension_rejected expired
the worker sweeps                             -> hold.expired H1
left of double A-1                            -> 1
ana books double A-1 with key K               -> hold.created H2
ana cancels H2                                -> hold.released
ana extends H2 by 1m                          -> hold.extension_rejected released
ana books double A-1 with key L               -> hold.created H3
ana pays for H3 with P1                       -> hold.confirmed
ana extends H3 by 1m                          -> hold.extension_rejected confirmed
ana extends H9 by 1m                          -> hold.extension_rejected unknown_hold
nothing is left of double
