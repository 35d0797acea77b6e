package recovery

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
	"holdfast/internal/record"
)

// The intervals and timeouts of a Marker.
const (
	markInterval = 500 * time.Millisecond
	markTimeout  = 2 * time.Second
	// markLease is how long the other workers leave the markers to the worker that has written them last.
	markLease = 3 * markInterval
)

// formatPosition writes what parsePosition reads: <creation in Unix ns>.<sequence>.<storage in Unix ns>.
func formatPosition(p holds.LogPosition) string {
	text := strconv.FormatInt(p.Created.UnixNano(), 10) + "." + strconv.FormatUint(p.Seq, 10)
	if !p.StoredAt.IsZero() {
		text += "." + strconv.FormatInt(p.StoredAt.UnixNano(), 10)
	}
	return text
}

// parsePosition also reads positions without the time of storage.
func parsePosition(text string) (p holds.LogPosition, ok bool) {
	created, seq, _ := strings.Cut(text, ".")
	seq, stored, timed := strings.Cut(seq, ".")
	ns, err := strconv.ParseInt(created, 10, 64)
	if err != nil {
		return p, false
	}
	p.Created = time.Unix(0, ns)
	if p.Seq, err = strconv.ParseUint(seq, 10, 64); err != nil {
		return p, false
	}
	if timed {
		if ns, err = strconv.ParseInt(stored, 10, 64); err != nil {
			return p, false
		}
		p.StoredAt = time.Unix(0, ns)
	}
	return p, true
}

// marker is the value of the key applied of a partition: the partition has every change behind the
// outcomes up to a position. It was written under an epoch, on the server with a replication history.
type marker struct {
	epoch, history string
	holds.LogPosition
}

func parseMarker(text string) (m marker, ok bool) {
	words := strings.Split(text, " ")
	if len(words) != 3 {
		return m, false
	}
	m.epoch, m.history = words[0], words[1]
	m.LogPosition, ok = parsePosition(words[2])
	return m, ok
}

// MarkedPosition decodes the position in the value of the key applied of a partition. ok is false when it has none.
func MarkedPosition(text string) (p holds.LogPosition, ok bool) {
	m, ok := parseMarker(text)
	return m.LogPosition, ok
}

// Marker writes to every partition, every 500 ms, how far the outcome log reached before (see doc.go).
//
// One worker of the deployment writes the markers of a server, and reads the state of the stream for that:
// the others see its name in Redis and wait until it is gone. While the stream does not grow it only renews
// its name: the stored markers are as good as new ones. When an older state of the stream was restored, they go back
// with it. One in an older state of Redis does not: a resume recognizes it by the time of its outcome.
type Marker struct {
	SupervisorOptions

	clients serverClients
	failed  failure
}

// NewMarker returns a Marker with the options of a worker's Supervisor.
func NewMarker(o SupervisorOptions) *Marker {
	return &Marker{SupervisorOptions: o, clients: make(serverClients)}
}

// Run writes markers until ctx ends.
func (m *Marker) Run(ctx context.Context) {
	defer m.clients.closeAll()
	ticker := time.NewTicker(markInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		_, err := m.Mark(ctx)
		if ctx.Err() == nil && m.failed.isNew(err) {
			m.Log.Warn().Err(err).Msg("marker not written to redis, a recovery reads more outcomes")
		}
	}
}

// Mark writes the markers once, unless other workers do. It reports whether this worker does for some
// server. It leaves out the partitions in which nothing is decided.
func (m *Marker) Mark(ctx context.Context) (own bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	current := m.Term.Current()
	servers, err := m.Servers(ctx)
	if err != nil {
		return false, fmt.Errorf("find the redis servers: %w", err)
	}
	m.clients.keep(servers)
	var failed []error
	var mine []Server
	for _, server := range servers {
		ready := server.Partitions & current.Ready
		if ready == 0 {
			continue
		}
		marks, err := m.marks(ctx, server, ready)
		if marks {
			mine = append(mine, server)
		}
		failed = append(failed, err)
	}
	if len(mine) == 0 {
		return false, errors.Join(failed...)
	}
	position, err := m.OutcomeLog.Position(ctx)
	if err != nil {
		return true, errors.Join(append(failed, err)...)
	}
	for _, server := range mine {
		if err := m.write(ctx, server, current, position); err != nil {
			failed = append(failed, err)
			m.clients.closeAll() // a connection may lead to a server that was replaced
		}
	}
	return true, errors.Join(failed...)
}

// marks reports whether this worker writes the markers of a server, in which it decides some partitions.
func (m *Marker) marks(ctx context.Context, server Server, ready record.PartitionSet) (bool, error) {
	key := m.keys().Marking(markingPartition(server, ready.Sorted()[0]))
	other, err := m.clients.of(server).Get(ctx, key).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return true, nil
	case err != nil:
		m.clients.closeAll()
		return false, fmt.Errorf("read who writes markers: %w", err)
	}
	return other == m.Name, nil
}

// write writes a position to the partitions of a server in which the worker decides. Every change behind
// the outcomes up to it was made before the call.
func (m *Marker) write(
	ctx context.Context, server Server, current *holds.CurrentEpochs, position holds.LogPosition,
) error {
	var calls []*lua.Call
	histories := make(map[string]*lua.Call)
	for p := range (server.Partitions & current.Ready).Each() {
		epoch := current.Partition(p)
		if epoch.History == "" {
			continue
		}
		c := histories[epoch.History]
		if c == nil || server.Addr != "" {
			c = &lua.Call{
				Script: scriptMarker, Keys: []string{m.keys().Marking(markingPartition(server, p))},
				Args: []any{m.Name, markLease.Milliseconds(), epoch.History, formatPosition(position)},
			}
			calls, histories[epoch.History] = append(calls, c), c
		}
		c.Keys, c.Args = append(c.Keys, m.keys().Epoch(p), m.keys().Applied(p)), append(c.Args, epoch.Name)
	}
	lua.Run(ctx, server.runner(m.clients.of(server)), calls)
	for _, c := range calls {
		if holds.SetReplyError(c); c.Expect(0) != nil {
			return fmt.Errorf("write markers: %w", c.Err)
		}
	}
	return nil
}

// markingPartition returns the partition whose key marking names who writes the marker of partition p. A lone server
// has one such key. In a cluster the keys of a run are in one hash slot, so that each partition has its own.
func markingPartition(server Server, p int) int {
	if server.Addr != "" {
		return p
	}
	return server.Partitions.Sorted()[0]
}

func (m *Marker) keys() record.Keyspace { return record.Keyspace(m.Namespace) }
