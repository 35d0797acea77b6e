# A request key has one answer; a repeated request gets the same one.
hall has 1 of A-1,A-2                          -> inventory.updated
ana books hall A-2,A-1 for 60s with key k1     -> hold.created H1
10s passes
ana books hall A-1,A-2 for 60s with key k1     -> hold.created H1 replayed   # the same set of seats
ana books hall A-1 for 60s with key k1         -> hold.rejected request_key_reused
ana books hall A-1,A-2 with key k1             -> hold.rejected request_key_reused  # a request without a ttl differs
ben books hall A-1,A-2 for 60s with key k1     -> hold.rejected request_key_reused
ana books 2 of hall A-1,A-2 with key k2        -> hold.rejected already_holding H1  # with any quantity
ana books 2 of hall A-1,A-2 with key k2        -> hold.rejected already_holding H1 replayed
ben books hall A-1 with key k3                 -> hold.rejected sold_out A-1:1/0/1 retry in 50s
ana cancels H1                                 -> hold.released
ana cancels H1                                 -> hold.release_rejected released
ben books hall A-1 with key k3                 -> hold.rejected sold_out A-1:1/0/1 retry in 50s replayed  # a retry needs a new key
ben books hall A-1 with key k4                 -> hold.created H2
ana books hall A-1,A-2 for 60s with key k1     -> hold.created H1 replayed  # also after the hold has ended
nothing has 1 of A-9                           -> inventory.updated
ben cancels H2                                 -> hold.released
nothing is left of hall
