-- A hold in Postgres alone: one function call, one transaction. $schema is replaced.
CREATE SCHEMA $schema;
CREATE TABLE $schema.nights (
    resource_id text NOT NULL,
    night       text NOT NULL,
    capacity    bigint NOT NULL,
    held        bigint NOT NULL DEFAULT 0 CHECK (held BETWEEN 0 AND capacity),
    PRIMARY KEY (resource_id, night)
) WITH (fillfactor = 50); -- room for updates in the same page
CREATE TABLE $schema.holds (
    request_key text PRIMARY KEY,
    resource_id text NOT NULL,
    nights      text[] NOT NULL,
    quantity    bigint NOT NULL,
    placed      boolean NOT NULL,
    expires_at  timestamptz NOT NULL
);
CREATE FUNCTION $schema.place(key text, resource text, wanted text[], number bigint, lifetime interval)
    RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    free bigint;
BEGIN
    INSERT INTO $schema.holds VALUES (key, resource, wanted, number, true, now() + lifetime) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN (SELECT placed FROM $schema.holds WHERE request_key = key);
    END IF;
    SELECT count(*) INTO free FROM (
        SELECT capacity - held AS room FROM $schema.nights
        WHERE resource_id = resource AND night = ANY (wanted) ORDER BY night FOR NO KEY UPDATE
    ) AS locked WHERE room >= number;
    IF free < cardinality(wanted) THEN
        UPDATE $schema.holds SET placed = false WHERE request_key = key;
        RETURN false;
    END IF;
    UPDATE $schema.nights SET held = held + number WHERE resource_id = resource AND night = ANY (wanted);
    RETURN true;
END
$$;
