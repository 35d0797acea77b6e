# Capacity is cut below the held quantity: holds stay, and a payment that does not fit is refunded.
tour has 2 of stock                  -> inventory.updated
ana books 2 of tour stock for 60s    -> hold.created H1
tour has 1 of stock                  -> inventory.updated
left of tour stock                   -> 0
ana pays for H1 with P1              -> hold.confirm_rejected sold_out
H1 is                                -> held
ana pays for H1 with P1              -> hold.confirm_rejected sold_out
tour has 2 of stock                  -> inventory.updated
ana pays for H1 with P1              -> hold.confirm_rejected sold_out   # the answer to a payment is permanent
ana pays for H1 with P2              -> hold.confirmed
nothing is left of tour
tour has 1 of stock                  -> inventory.rejected below_reserved
ben books tour stock                 -> hold.rejected sold_out stock:2/2/0 retry never
