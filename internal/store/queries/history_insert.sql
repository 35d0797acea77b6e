-- Inserts a commit marker that belongs to no server, so that everything is compared, unless one exists.
INSERT INTO commit_marker (history, server) VALUES (gen_random_uuid(), '') ON CONFLICT DO NOTHING
