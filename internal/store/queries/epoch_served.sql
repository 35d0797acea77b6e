-- queries/epoch_served.sql
-- Notes which server has a written epoch, if another one was noted, or none.
-- $1 epoch  $2 server  $3 what was noted
UPDATE redis_epoch SET server = $2 WHERE epoch = $1 AND written AND coalesce(server, '') = $3
