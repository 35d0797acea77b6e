-- +goose Up

-- Migrations only add, so programs of the version before work on: those that know this schema version or a higher
-- one. A migration that such programs would misread, or write against, raises it: they stop, and refuse to start.
CREATE TABLE schema_compatibility (
    only_row boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_one_compatibility CHECK (only_row),
    works_from bigint NOT NULL
);
INSERT INTO schema_compatibility (works_from) VALUES (4);
