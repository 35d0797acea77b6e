# After the start of a payment the hold lasts five more minutes, once for each hold.
double has 1 of stock                         -> inventory.updated
ana books double stock for 60s                -> hold.created H1
ana starts to pay for H1                      -> hold.extended to 5m0s
1m passes
the event comes again                         -> hold.extended
ana starts to pay for H1                      -> hold.extension_rejected already_started
the event comes again                         -> hold.extension_rejected already_started
H1 is                                         -> held
ana extends H1 by 10m                         -> hold.extended to 10m0s     # an extension is still possible
10m passes
ana starts to pay for H1                      -> hold.extension_rejected expired
ben books double stock for 10m                -> hold.created H2
ben starts to pay for H2                      -> hold.extended to 10m0s     # the deadline was already later
ben extends H2 by 60m                         -> hold.extended to 1h0m0s
30m passes
ben extends H2 by 60m                         -> hold.extended to 1h0m0s
58m passes
ben starts to pay for H2                      -> hold.extension_rejected already_started
2m passes
the worker sweeps                             -> hold.expired H1 H2
cyd books double stock for 60m                -> hold.created H3
55m passes
cyd extends H3 by 20m                         -> hold.extended to 20m0s
15m passes
cyd extends H3 by 18m                         -> hold.extended to 18m0s
17m passes
cyd starts to pay for H3                      -> hold.extension_rejected limit_reached
the event comes again                         -> hold.extension_rejected limit_reached
cyd starts to pay for H3                      -> hold.extension_rejected limit_reached   # nothing was changed
cyd extends H3 by 3m                          -> hold.extended to 3m0s
1m passes
cyd pays for H3 with P1                       -> hold.confirmed
cyd starts to pay for H3                      -> hold.extension_rejected confirmed
nothing is left of double
