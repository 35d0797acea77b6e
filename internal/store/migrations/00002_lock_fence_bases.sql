-- +goose Up

-- What fencing tokens are counted from each time that Redis has lost its count: a sequence never
-- goes back, so a token of before the loss is lower than any after it.
CREATE SEQUENCE lock_fence_bases MINVALUE 1;
