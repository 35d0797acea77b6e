#!/bin/sh
# Creates the durable consumers from which the teams of accounts.conf read, where they are missing:
#
#   NATS_URL=nats://nats:4222 NATS_USER=holdfast_admin NATS_PASSWORD=... sh consumers.sh [all|new]
#
# With all (the default) a new consumer begins with what its stream still has, with new with what is
# stored from now on. For another namespace: sed as accounts.conf says.
set -eu
deliver=${1:-all}

add() {   # STREAM CONSUMER OPTION...
  if ! nats consumer info "$1" "$2" > /dev/null 2>&1; then
    nats consumer add "$@" --pull --ack explicit --deliver "$deliver" --defaults > /dev/null
  fi
}

# The outcomes that concern a team.
add HOLDFAST_OUT booking \
  --filter 'holdfast.out.hold.>' --filter 'holdfast.out.booking.>' --filter 'holdfast.out.reservation.>'
add HOLDFAST_OUT payment --filter 'holdfast.out.hold.confirmed.>' --filter 'holdfast.out.hold.confirm_rejected.>'
add HOLDFAST_OUT inventory --filter 'holdfast.out.inventory.>'

# Dead letters. Their subjects do not name a team, so each team sees those of all, but only their headers:
# never a body, in which there may be what no other team may know.
for team in booking payment inventory; do
  add HOLDFAST_DLQ "$team" --headers-only
done
