package connect

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisPort is the default port of the servers of a cluster.
const redisPort = "6379"

// slotsReload is the age from which a client of a cluster reads the hash slots again. It also reads them
// when a server refuses a call or does not answer.
const slotsReload = 5 * time.Second

// IsCluster reports whether address is the URL of a Redis Cluster.
func IsCluster(address string) bool {
	return strings.HasPrefix(address, "redis+cluster://") || strings.HasPrefix(address, "rediss+cluster://")
}

// parseCluster parses what follows the scheme of the URL of a Redis Cluster. The options are those of its
// first server, nil for a malformed URL. base is the scheme for a single server.
func parseCluster(base, rest string) (addrs []string, options *redis.Options) {
	login, addrs, path, query := splitHosts(rest, redisPort)
	if addrs == nil || path != "" && path != "0" { // it has one database
		return nil, nil
	}
	options, err := redis.ParseURL(base + login + addrs[0] + query)
	if err != nil || options.DB != 0 {
		return nil, nil
	}
	return addrs, options
}

// ClusterAddrs returns the addresses in the URL of a Redis Cluster that RedisOptions accepts.
func ClusterAddrs(address string) []string {
	_, rest, _ := strings.Cut(address, "://")
	addrs, _ := parseCluster("redis://", rest)
	return addrs
}

// ClusterOptions returns the options of a client of the Redis Cluster at address. node returns the options
// of a client of one of its servers. The client sends a command once: it follows no redirection, because a
// server to which a hash slot is moving lacks some of its keys.
func ClusterOptions(address string, node func(addr string) *redis.Options) *redis.ClusterOptions {
	addrs := ClusterAddrs(address)
	its := node(addrs[0])
	return &redis.ClusterOptions{
		Addrs: addrs, MaxRedirects: -1, MaxRetries: -1, DisableRoutingPolicies: true,
		ClusterStateReloadInterval: slotsReload,
		NewClient: func(o *redis.Options) *redis.Client {
			client := redis.NewClient(node(o.Addr))
			client.AddHook(slotsHook{})
			return client
		},
		// What the client does itself with the connections of its servers' clients.
		ReadTimeout: its.ReadTimeout, WriteTimeout: its.WriteTimeout, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: its.MaintNotificationsConfig,
	}
}

// slotsHook makes an answer without hash slots an error: go-redis uses the first answer without an error, and a server that
// was removed from the cluster must not hide the others.
type slotsHook struct{}

var errNoSlots = errors.New("it knows no hash slots, so it is not part of the cluster")

func (slotsHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (slotsHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if slots, is := cmd.(*redis.ClusterSlotsCmd); is && err == nil && len(slots.Val()) == 0 {
			err = errNoSlots
			cmd.SetErr(err)
		}
		return err
	}
}

func (slotsHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
