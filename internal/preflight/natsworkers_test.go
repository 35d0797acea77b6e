package preflight_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/preflight"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// readerOf reads a store, and moves its position.
func readerOf(s *store.Store, by int64) func(context.Context) (holds.Database, error) {
	return func(ctx context.Context) (holds.Database, error) {
		d, err := s.ReadDatabase(ctx)
		d.Position += by
		return d, err
	}
}

// runWorker answers queries as a worker does, until the test ends.
func (w *harness) runWorker(t *testing.T, name string, read func(context.Context) (holds.Database, error)) {
	t.Helper()
	service := queries.NewService(w.nc, w.ns, nil, nil, name, zerolog.Nop())
	service.Database = read
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := service.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	stacktest.Eventually(t, "the worker to answer", func() bool {
		return strings.Contains(w.check()["nats.workers"].Found, "running workers: 1")
	})
}

// TestNATSWorkers_OtherDatabase_Fails runs a worker on one database, and checks with another one, or with a copy of the first.
func TestNATSWorkers_OtherDatabase_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const far = 1 << 30 // bytes that the server does not write meanwhile
	same := w.open(w.PostgresURL)
	stacktest.PostgresSQL(t, w.PostgresURL, "CREATE DATABASE other")
	other := w.open(strings.Replace(w.PostgresURL, "/postgres?", "/other?", 1))
	var busy atomic.Bool
	for name, c := range map[string]struct {
		read func(context.Context) (holds.Database, error)
		want preflight.Status
	}{
		"the same":       {readerOf(same, 0), preflight.OK},
		"another one":    {readerOf(other, 0), preflight.Fail},
		"a copy, behind": {readerOf(same, -far), preflight.Fail},
		"a copy, ahead":  {readerOf(same, far), preflight.Fail},
		"no answer": {func(context.Context) (holds.Database, error) {
			return holds.Database{}, errors.New("postgres is down")
		}, preflight.Unknown},
		"another one, late": {func(ctx context.Context) (holds.Database, error) {
			if busy.Swap(false) {
				return holds.Database{}, errors.New("postgres is busy")
			}
			return readerOf(other, 0)(ctx)
		}, preflight.Fail},
	} {
		t.Run(name, func(t *testing.T) {
			w.runWorker(t, "host-1", c.read)
			busy.Store(true)
			check := w.expect(name, []string{"nats.workers " + string(c.want)})["nats.workers"]
			if named := strings.Contains(check.Found, "host-1"); named != (c.want == preflight.Fail) {
				t.Errorf("the worker is named: %t, %+v", named, check)
			}
		})
	}
}
