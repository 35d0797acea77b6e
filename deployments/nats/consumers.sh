#!/bin/sh
# Creates the missing durable consumers for the teams of accounts.conf:
#
#   NATS_URL=nats://nats:4222 NATS_USER=holdfast_admin NATS_PASSWORD=... sh consumers.sh [all|new]
#
# With all (the default) a new consumer begins with the oldest message of its stream, with new with the next
# one. For another namespace use the sed command in accounts.conf.
set -eu
deliver=${1:-all}

add() {   # STREAM CONSUMER OPTION...
  if ! nats consumer info "$1" "$2" > /dev/null 2>&1; then
    nats consumer add "$@" --pull --ack explicit --deliver "$deliver" --defaults > /dev/null
  fi
}

# The outcomes that concern a team. Those of payment.started are among the booking team's; the payment team names an
# inbox for them.
add HOLDFAST_OUT booking \
  --filter 'holdfast.out.hold.>' --filter 'holdfast.out.booking.>' --filter 'holdfast.out.reservation.>'
add HOLDFAST_OUT payment --filter 'holdfast.out.hold.confirmed.>' --filter 'holdfast.out.hold.confirm_rejected.>'
add HOLDFAST_OUT inventory --filter 'holdfast.out.inventory.>'

# Dead letters. Their subjects do not name a team, so each team reads those of all teams, but only their
# headers: a body may contain data that no other team may know.
for team in booking payment inventory; do
  add HOLDFAST_DLQ "$team" --headers-only
done
