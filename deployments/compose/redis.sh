#!/bin/sh
# Starts a Redis server or a Sentinel of compose.yaml. The server redis-1 is the first primary.
#
#   redis.sh server NAME    with ../redis/redis.conf and the users of ../redis/users.conf.template
#   redis.sh sentinel NAME
set -eu
role=$1 name=$2 data=${REDIS_DATA:-/data} port=${REDIS_PORT:-6379} files=${REDIS_FILES:-/holdfast}
umask 077
mkdir -p "$data"

if [ "$role" = sentinel ]; then
  # Sentinel rewrites its file: it keeps what it knows after a restart.
  if [ ! -e "$data/sentinel.conf" ]; then
    cat > "$data/sentinel.conf" <<EOF
port ${SENTINEL_PORT:-26379}
bind ${REDIS_BIND:-* -::*}
protected-mode no
dir $data
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $name
sentinel monitor holdfast ${PRIMARY:-redis-1} $port 2
sentinel auth-user holdfast replication
sentinel auth-pass holdfast $HOLDFAST_REDIS_REPLICATION_PASSWORD
sentinel down-after-milliseconds holdfast 2000
sentinel failover-timeout holdfast 10000
EOF
  fi
  exec redis-server "$data/sentinel.conf" --sentinel
fi

# Only the passwords are replaced, as envsubst does.
eval "cat <<EOF
$(grep '^user ' "$files/users.conf.template")
EOF" > "$data/users.acl"
# For replicas and Sentinels, as the documentation of Redis lists it.
cat >> "$data/users.acl" <<EOF
user replication on >$HOLDFAST_REDIS_REPLICATION_PASSWORD allchannels +psync +replconf +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname +client|kill +script|kill
EOF
# The server rewrites this file after a failover.
if [ ! -e "$data/redis.conf" ]; then
  sed "s|^aclfile .*|aclfile $data/users.acl|" "$files/redis.conf" > "$data/redis.conf"
  cat >> "$data/redis.conf" <<EOF
port $port
dir $data
bind ${REDIS_BIND:-* -::*}
protected-mode no
replica-announce-ip $name
masteruser replication
masterauth $HOLDFAST_REDIS_REPLICATION_PASSWORD
# Without a replica that follows, acknowledged writes would be lost in a failover: workers wait instead.
min-replicas-to-write 1
min-replicas-max-lag 10
EOF
  if [ "$name" != "${PRIMARY:-redis-1}" ]; then
    echo "replicaof ${PRIMARY:-redis-1} $port" >> "$data/redis.conf"
  fi
fi
exec redis-server "$data/redis.conf"
