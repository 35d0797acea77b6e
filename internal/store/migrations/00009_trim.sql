-- +goose Up

-- Workers remove old answers, a few at a time.
CREATE INDEX event_answers_by_age ON event_answers (decided_at);
