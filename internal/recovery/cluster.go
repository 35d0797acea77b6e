package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/record"
)

// topologyTimeout bounds the question to one server of a cluster, which is below redisCheckTimeout. All
// servers are asked at once. The first question may take longer: a command that starts must not fail
// because a machine is busy.
const (
	topologyTimeout      = 300 * time.Millisecond
	firstTopologyTimeout = 3 * time.Second
)

// drainedFor is how long a primary whose last partition was moved away is still found: the check that finds this
// partition elsewhere must also find that its former server has lost nothing.
const drainedFor = 5 * time.Second

// Cluster finds the servers of a Redis Cluster. It asks the servers that the settings name and those
// that it has found. One goroutine uses it.
type Cluster struct {
	namespace record.Keyspace
	options   func(addr string) *redis.Options
	seeds     []Server
	clients   serverClients        // of the seeds and the primaries found last
	servers   []Server             // as found last
	hadAt     map[string]time.Time // by address: when a primary last had partitions
}

// NewCluster returns a Cluster. seeds are the addresses of some of its servers, options those of a
// client of one server. The caller calls Close.
func NewCluster(namespace string, seeds []string, options func(addr string) *redis.Options) *Cluster {
	c := &Cluster{
		namespace: record.Keyspace(namespace), options: options, clients: make(serverClients),
		hadAt: make(map[string]time.Time),
	}
	for _, addr := range seeds {
		c.seeds = append(c.seeds, c.server(addr, 0))
	}
	return c
}

// Close closes the connections.
func (c *Cluster) Close() {
	c.clients.closeAll()
}

// topology is what one server knows about the cluster.
type topology struct {
	epoch int64 // of the cluster: grows with each failover
	slots []redis.ClusterSlot
	err   error
}

// Servers returns the primaries that have hash slots and their partitions, as in SupervisorOptions, and for a while also a
// server whose partitions have all been moved to others. Of the servers that answer it believes those that know of the
// latest failover: a primary that is cut off may still take itself for one. Each of them it believes about its own slots:
// a server to which a slot is being moved from a primary that dies names that one even after its replica was promoted.
func (c *Cluster) Servers(ctx context.Context) ([]Server, error) {
	asked := slices.Clone(c.seeds)
	for _, server := range c.servers {
		if server.Partitions != 0 {
			asked = append(asked, server)
		}
	}
	slices.SortFunc(asked, func(a, b Server) int { return strings.Compare(a.Addr, b.Addr) })
	asked = slices.CompactFunc(asked, func(a, b Server) bool { return a.Addr == b.Addr })
	c.clients.keep(asked)
	within := topologyTimeout
	if len(c.servers) == 0 {
		within = firstTopologyTimeout
	}
	answers := make([]topology, len(asked))
	var asking sync.WaitGroup
	for i, server := range asked {
		client := c.clients.of(server)
		asking.Go(func() { answers[i] = askTopology(ctx, client, within) })
	}
	asking.Wait()
	best, errs := topology{epoch: -1}, []error(nil)
	for i, a := range answers {
		if a.err != nil {
			c.clients.close(asked[i].Addr)
			errs = append(errs, fmt.Errorf("%s: %w", asked[i].Addr, a.err))
		} else if a.epoch > best.epoch {
			best = a
		}
	}
	if best.epoch < 0 {
		return nil, fmt.Errorf("no server of the redis cluster answers: %w", errors.Join(errs...))
	}
	var slots []redis.ClusterSlot
	for i, a := range answers {
		if a.err == nil && a.epoch == best.epoch {
			slots = append(slots, slotsOf(asked[i].Addr, a.slots)...)
		}
	}
	slots = append(slots, best.slots...)
	c.servers = c.serversIn(slots)
	return c.servers, nil
}

// slotsOf returns those of some slots that a primary has.
func slotsOf(addr string, all []redis.ClusterSlot) (its []redis.ClusterSlot) {
	for _, some := range all {
		if len(some.Nodes) > 0 && some.Nodes[0].Addr == addr {
			its = append(its, some)
		}
	}
	return its
}

// askTopology asks one server.
func askTopology(ctx context.Context, client *redis.Client, within time.Duration) (t topology) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	pipe := client.Pipeline()
	info, slots := pipe.ClusterInfo(ctx), pipe.ClusterSlots(ctx)
	if _, t.err = pipe.Exec(ctx); t.err != nil {
		return t
	}
	t.epoch, t.err = strconv.ParseInt(InfoFields(info.Val())["cluster_current_epoch"], 10, 64)
	if t.slots = slots.Val(); len(t.slots) == 0 && t.err == nil {
		t.err = errNoSlots
	}
	return t
}

// errNoSlots is the error of a server that knows no hash slots: it has left the cluster (del-node keeps its epoch), or
// has not joined it yet.
var errNoSlots = errors.New("it knows no hash slots, so it is not part of the cluster")

// serversIn returns the primaries that have hash slots, and those that had partitions at the last call or shortly before.
// The first one that slots name for a slot has it.
func (c *Cluster) serversIn(slots []redis.ClusterSlot) (servers []Server) {
	partitions := make(map[string]record.PartitionSet) // by address
	for p := range record.Partitions {
		slot := hashSlot(c.namespace.Epoch(p))
		for _, its := range slots {
			if its.Start <= slot && slot <= its.End && len(its.Nodes) > 0 {
				partitions[its.Nodes[0].Addr] |= record.PartitionSetOf(p)
				break
			}
		}
	}
	for _, its := range slots {
		if len(its.Nodes) > 0 {
			partitions[its.Nodes[0].Addr] |= 0 // must be known before a partition is moved to it, see movedByResharding
		}
	}
	now := time.Now()
	for _, server := range c.servers {
		if server.Partitions != 0 {
			c.hadAt[server.Addr] = now // at the last call, however long ago that was
		}
	}
	maps.DeleteFunc(c.hadAt, func(_ string, at time.Time) bool { return now.Sub(at) > drainedFor })
	for addr := range c.hadAt {
		partitions[addr] |= 0
	}
	for _, addr := range slices.Sorted(maps.Keys(partitions)) {
		servers = append(servers, c.server(addr, partitions[addr]))
	}
	return servers
}

func (c *Cluster) server(addr string, has record.PartitionSet) Server {
	return Server{Addr: addr, Options: func() *redis.Options { return c.options(addr) }, Partitions: has}
}

// hashSlots is the number of hash slots of a Redis Cluster.
const hashSlots = 16384

// hashSlot returns the hash slot of a key that has a hash tag: the CRC16 (XMODEM) of the tag.
func hashSlot(key string) int {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	crc := uint16(0)
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % hashSlots
}

// serverClients are clients of single servers, by address. Each has one connection. One goroutine uses them.
type serverClients map[string]*redis.Client

// of returns the client of a server. It creates it when it is missing.
func (c serverClients) of(server Server) *redis.Client {
	if c[server.Addr] == nil {
		options := server.Options()
		options.PoolSize = 1
		c[server.Addr] = redis.NewClient(options)
	}
	return c[server.Addr]
}

// close closes the connection to a server.
func (c serverClients) close(addr string) {
	if client := c[addr]; client != nil {
		_ = client.Close() // no command is in progress
		delete(c, addr)
	}
}

// keep closes the connections to other servers than these.
func (c serverClients) keep(servers []Server) {
	for addr := range c {
		if !slices.ContainsFunc(servers, func(server Server) bool { return server.Addr == addr }) {
			c.close(addr)
		}
	}
}

func (c serverClients) closeAll() {
	for addr := range c {
		c.close(addr)
	}
}
