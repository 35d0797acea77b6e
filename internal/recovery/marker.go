package recovery

import (
	"context"
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

// formatPosition writes what parsePosition reads: <creation in Unix ns>.<sequence>.
func formatPosition(p holds.LogPosition) string {
	return strconv.FormatInt(p.Created.UnixNano(), 10) + "." + strconv.FormatUint(p.Seq, 10)
}

func parsePosition(text string) (p holds.LogPosition, ok bool) {
	created, seq, _ := strings.Cut(text, ".")
	ns, err := strconv.ParseInt(created, 10, 64)
	if err != nil {
		return p, false
	}
	p.Created = time.Unix(0, ns)
	p.Seq, err = strconv.ParseUint(seq, 10, 64)
	return p, err == nil
}

// marker is the value of the key applied of a partition: the partition has every change behind the
// outcomes up to a position, if its data was written under this epoch.
type marker struct {
	epoch string
	holds.LogPosition
}

func parseMarker(text string) (m marker, ok bool) {
	var position string
	m.epoch, position, _ = strings.Cut(text, " ")
	m.LogPosition, ok = parsePosition(position)
	return m, ok
}

// Marker writes to every partition, every 500 ms, how far the outcome log reached before. A worker
// publishes an outcome only after Redis has the change behind it, and Redis persists and replicates its
// writes in their order. So a server that shows a marker has every change behind the outcomes up to it,
// however many later writes it has lost.
//
// One worker of the deployment writes the markers, and reads the state of the stream for that: the
// others see its name in Redis and wait until it is gone. It writes nothing while the stream does not
// grow: then the stored markers are as good as new ones.
//
// The script checks the epoch and the replication history, as scripts that decide do: so the server is
// the one on which the decisions behind these outcomes were made.
type Marker struct {
	SupervisorOptions

	client      *redis.Client
	lastFailure string
}

// NewMarker returns a Marker with the options of a worker's Supervisor.
func NewMarker(o SupervisorOptions) *Marker { return &Marker{SupervisorOptions: o} }

// Run writes markers until ctx ends.
func (m *Marker) Run(ctx context.Context) {
	defer m.close()
	ticker := time.NewTicker(markInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		_, err := m.Mark(ctx)
		if ctx.Err() == nil {
			m.logFailure(err)
		}
	}
}

// logFailure logs a failure once, and again when it changes.
func (m *Marker) logFailure(err error) {
	switch {
	case err == nil:
		m.lastFailure = ""
	case err.Error() != m.lastFailure:
		m.lastFailure = err.Error()
		m.Log.Warn().Err(err).Msg("marker not written to redis, a recovery reads more outcomes")
	}
}

// Mark writes the markers once, unless another worker does. It reports whether this worker does. While
// there is no epoch it does nothing.
func (m *Marker) Mark(ctx context.Context) (own bool, err error) {
	epoch, err := m.Term.Current()
	if err != nil || epoch.History == "" {
		return false, nil // there is no epoch to write a marker under
	}
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	if m.client == nil {
		options := m.Redis()
		options.PoolSize = 1
		m.client = redis.NewClient(options)
	}
	keys := record.Keyspace(m.Namespace)
	other, err := m.client.Get(ctx, keys.Marking(0)).Result()
	switch {
	case err != nil && err != redis.Nil: //nolint:errorlint // go-redis returns it unwrapped
		m.close()
		return false, fmt.Errorf("read who writes markers: %w", err)
	case err == nil && other != m.Name:
		return false, nil
	}
	position, err := m.OutcomeLog.Position(ctx)
	if err != nil {
		return true, err
	}
	if err = writeMarkers(ctx, m.client, keys, m.Name, epoch, position); err != nil {
		m.close() // the connection may lead to a server that was replaced
	}
	return true, err
}

func (m *Marker) close() {
	if m.client != nil {
		_ = m.client.Close() // no command is in progress
		m.client = nil
	}
}

// writeMarkers writes a position to all partitions. Every change behind the outcomes up to it was made
// before the call, or was not made under this epoch.
func writeMarkers(
	ctx context.Context, client redis.UniversalClient, keys record.Keyspace, worker string, epoch holds.CurrentEpoch,
	position holds.LogPosition,
) error {
	c := &lua.Call{
		Script: scriptMarker, Keys: []string{keys.Marking(0)},
		Args: []any{worker, markLease.Milliseconds(), epoch.History, formatPosition(position)},
	}
	for p := range record.Partitions {
		c.Keys, c.Args = append(c.Keys, keys.Epoch(p), keys.Applied(p)), append(c.Args, epoch.Name)
	}
	lua.Run(ctx, client, []*lua.Call{c})
	if holds.SetReplyError(c); c.Expect(0) != nil {
		return fmt.Errorf("write markers: %w", c.Err)
	}
	return nil
}
