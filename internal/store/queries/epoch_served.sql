-- Stores which server has a complete epoch, if the stored server is the expected one.
-- $1 epoch  $2 server  $3 expected server, "" = none
UPDATE redis_epoch SET server = $2 WHERE epoch = $1 AND written AND coalesce(server, '') = $3
