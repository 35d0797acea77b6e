# Well-formed but not valid. Yesterday is accepted, because it is still today in some time zones.
double has 5 of 2026-11-01..2026-12-30                 -> inventory.updated
ana books double 2026-11-20..2026-11-22                -> hold.created H1
ana books double 2026-11-19..2026-11-22                -> hold.rejected invalid_request check_in
ana books double 2026-12-01..2026-12-01                -> hold.rejected invalid_request check_out
ana books double 2026-12-02..2026-12-01                -> hold.rejected invalid_request check_out
ana books double 2026-12-01..2027-01-01                -> hold.rejected invalid_request check_out
ana books double 2029-11-20..2029-11-21                -> hold.rejected unknown_resource
ana books double 2029-11-20..2029-11-22                -> hold.rejected invalid_request check_out
ana books 1000001 of double 2026-12-01..2026-12-02     -> hold.rejected invalid_request quantity
ana books 1000000 of double 2026-12-01..2026-12-02     -> hold.rejected sold_out 2026-12-01:5/0/0 retry never
ana books double 2026-12-01..2026-12-02 for 0s         -> hold.rejected invalid_request ttl_seconds
ana books double 2026-12-01..2026-12-02 for 61m        -> hold.rejected invalid_request ttl_seconds
ana books double 2026-12-01..2026-12-02 for 60m        -> hold.created H2
