-- +goose Up

-- Of two inventory.set events the one stored later in the inbound stream wins, whatever the clocks
-- said: that of a stream created later, or of the same stream the one with the higher sequence.
-- The version before writes set_by_event_at only. Then that is not set_in_stream_at any more, and
-- the times decide.
ALTER TABLE inventory
    ADD COLUMN set_by_stream_created_at timestamptz,
    ADD COLUMN set_by_stream_seq bigint,
    ADD COLUMN set_in_stream_at timestamptz; -- when the event with this sequence was stored
