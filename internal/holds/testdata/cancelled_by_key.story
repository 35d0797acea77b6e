# A publisher that received no answer cancels by the request key, before or after the request.
shop has 3 of stock                       -> inventory.updated
ana cancels key k1 on shop                -> booking.cancelled
ana cancels key k1 on shop                -> booking.cancelled
ana books shop stock with key k1          -> hold.rejected cancelled
ana books shop stock with key k1          -> hold.rejected cancelled
ana books shop stock with key k2          -> hold.created H1
ana cancels key k2 on shop                -> hold.released
ana cancels key k2 on shop                -> hold.release_rejected released
ben books 9 of shop stock with key k3     -> hold.rejected sold_out stock:3/0/0 retry never
ben cancels key k3 on shop                -> hold.release_rejected unknown_hold
ana cancels H9                            -> hold.release_rejected unknown_hold
nothing is left of shop
