#!/bin/sh
# Sets the passwords of the roles of roles.sql. The image of Postgres runs it once, in an empty data directory.
set -eu
for role in migrator worker upstream auditor; do
  name=$(echo "HOLDFAST_POSTGRES_${role}_PASSWORD" | tr '[:lower:]' '[:upper:]')
  psql -v ON_ERROR_STOP=1 -q -U postgres -d holdfast -v password="$(printenv "$name")" <<EOF
ALTER ROLE holdfast_$role PASSWORD :'password';
EOF
done
