# A reservation is cancelled once.
double has 1 of A-1,A-2                       -> inventory.updated
ana books double A-1,A-2                      -> hold.created H1
the reservation of H1 is cancelled            -> reservation.cancel_rejected unknown_reservation
ana pays for H1 with P1                       -> hold.confirmed
the event comes again                         -> reservation.cancel_rejected unknown_reservation   # the same event gets the same answer
ben books double A-1                          -> hold.rejected sold_out A-1:1/1/0 retry never
the reservation of H1 is cancelled            -> reservation.cancelled
left of double A-1,A-2                        -> 1 1
1h passes
the event comes again                         -> reservation.cancelled
the reservation of H1 is cancelled            -> reservation.cancel_rejected already_cancelled
the event comes again                         -> reservation.cancel_rejected already_cancelled
left of double A-1,A-2                        -> 1 1
ben books double A-1,A-2                      -> hold.created H2
ana pays for H1 with P1                       -> hold.confirmed                  # the answer to a payment is permanent
ana pays for H1 with P2                       -> hold.confirm_rejected already_confirmed
ben pays for H2 with P3                       -> hold.confirmed
the reservation of H9 is cancelled            -> reservation.cancel_rejected unknown_reservation
nothing is left of double
