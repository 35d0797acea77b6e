# Here a user may have three live holds on a resource. When one ends, another one may be created.
hall has 1 of A-1,A-2,A-3,A-4,A-5   -> inventory.updated
ana books hall A-1 for 60s          -> hold.created H1
ana books hall A-2 for 120s         -> hold.created H2
ana books hall A-3 for 120s         -> hold.created H3
ana books hall A-4                  -> hold.rejected hold_limit
ben books hall A-4                  -> hold.created H4
60s passes
ana books hall A-5                  -> hold.created H5
ana books hall A-1                  -> hold.rejected hold_limit
ana pays for H2 with P1             -> hold.confirmed
ana books hall A-1 for 30s          -> hold.created H6
the worker sweeps                   -> hold.expired H1
cleo books hall A-1,A-2             -> hold.rejected sold_out A-1:1/0/1 A-2:1/1/0 retry never
cleo books hall A-1,A-4             -> hold.rejected sold_out A-1:1/0/1 A-4:1/0/1 retry in 30s
