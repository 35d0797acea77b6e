#!/bin/sh
# Prints random passwords for all users of compose.yaml:
#
#   (umask 077; sh passwords.sh > .env)
#
# Run it once: Postgres and Redis keep the passwords of their first start, until docker compose down --volumes.
set -eu
for name in NATS_SYS NATS_ADMIN NATS_MIGRATOR NATS_WORKER NATS_OPERATOR NATS_AUDITOR NATS_BOOKING NATS_PAYMENT \
  NATS_INVENTORY NATS_ROUTES REDIS_ADMIN REDIS_MIGRATOR REDIS_WORKER REDIS_AUDITOR REDIS_REPLICATION \
  POSTGRES_ADMIN POSTGRES_MIGRATOR POSTGRES_WORKER POSTGRES_UPSTREAM POSTGRES_AUDITOR GRAFANA_ADMIN; do
  echo "HOLDFAST_${name}_PASSWORD=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
done
echo "HOLDFAST_API_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')"
