-- Inserts the reservations of holds. It skips those that another transaction has inserted.
-- $1 hold_id[]  $2 resource_id[]  $3 user_id[]  $4 slots[] (comma-separated)  $5 quantity[]
-- $6 payment_id[]  $7 request_key[]  $8 confirmed_at[]
-- Returns the hold_id of each inserted reservation.
INSERT INTO reservations (hold_id, resource_id, user_id, slots, quantity, payment_id, request_key, confirmed_at)
SELECT hold_id, resource_id, user_id, string_to_array(slots, ','), quantity, payment_id, request_key, confirmed_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::timestamptz[])
    AS r (hold_id, resource_id, user_id, slots, quantity, payment_id, request_key, confirmed_at)
ORDER BY hold_id
ON CONFLICT ON CONSTRAINT a_hold_becomes_one_reservation DO NOTHING
RETURNING hold_id
