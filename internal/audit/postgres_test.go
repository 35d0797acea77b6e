package audit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5/pgxpool"

	"holdfast/internal/audit"
	"holdfast/internal/postgres"
	"holdfast/internal/stack/stacktest"
)

// TestResources_ManySlots_ReadsNoOthers reads a page of resources with many slots: about one row of
// each is read.
func TestResources_ManySlots_ReadsNoOthers(t *testing.T) {
	t.Parallel()
	const resources, limit = 20, 12
	w := newHarness(t)
	w.execute(`INSERT INTO inventory (resource_id, slot, capacity)
		SELECT 'r' || lpad(r::text, 2, '0'), 's' || s, 1 FROM generate_series(1, $1) AS r, generate_series(1, 500) AS s`, resources)
	w.execute(`ANALYZE inventory`)
	var found []string
	for last := ""; ; last = found[len(found)-1] {
		var page []string
		w.must(w.backends.Postgres.QueryRow(t.Context(),
			`SELECT coalesce(array_agg(resource_id), '{}') FROM (`+audit.QueryResources+`) AS page`, last,
			limit).Scan(&page))
		if found = append(found, page...); len(page) == 0 {
			break
		}
	}
	for i, name := range found {
		if want := fmt.Sprintf("r%02d", i+1); name != want || len(found) != resources {
			t.Errorf("resource %d of %d is %s, want %s", i, len(found), name, want)
		}
	}
	var text string
	w.must(w.backends.Postgres.QueryRow(t.Context(), `EXPLAIN (ANALYZE, FORMAT JSON) `+audit.QueryResources, "",
		limit).Scan(&text))
	var plans []struct{ Plan planNode }
	w.must(json.Unmarshal([]byte(text), &plans))
	if got := plans[0].Plan.rowsOf("inventory"); got < limit || got > 2*limit {
		t.Errorf("%v rows are read for %d resources:\n%s", got, limit, text)
	}
}

// planNode is a node of an executed query plan.
type planNode struct {
	Relation string  `json:"Relation Name"`
	Rows     float64 `json:"Actual Rows"`
	Removed  float64 `json:"Rows Removed by Filter"`
	Loops    float64 `json:"Actual Loops"`
	Plans    []planNode
}

// rowsOf returns how many rows of a table were read.
func (n planNode) rowsOf(table string) (rows float64) {
	if n.Relation == table {
		rows = (n.Rows + n.Removed) * n.Loops
	}
	for _, child := range n.Plans {
		rows += child.rowsOf(table)
	}
	return rows
}

// TestRun_PostgresSilent_ReturnsError audits while the connections to Postgres lose all bytes: from its first query on, and
// from the moment at which it has read Redis.
func TestRun_PostgresSilent_ReturnsError(t *testing.T) {
	t.Parallel()
	for name, while := range map[string]string{"at once": "", "while it reads": "redis"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			address, proxy := stacktest.ProxyTo(t, stacktest.Shared().PostgresURL)
			var err error
			w.backends.Postgres, err = audit.OpenPostgres(t.Context(), address, w.namespace, postgres.EndSilent(10*time.Second),
				func(config *pgxpool.Config) { // a ping would have another connection used
					config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
				})
			w.must(err)
			t.Cleanup(w.backends.Postgres.Close)
			w.must(w.backends.Postgres.Ping(t.Context()))
			if while == "" {
				proxy.HalfOpen()
			}
			_, err = audit.Run(stacktest.WaitContext(t), w.backends, audit.Options{Progress: func(what string, _ float64) {
				if what == while {
					proxy.HalfOpen()
				}
			}})
			if !errors.Is(err, postgres.ErrSilent) {
				t.Errorf("the audit: %v", err)
			}
		})
	}
}

// TestAudit_TableLocked_ReturnsError audits, and reconciles, while another session holds a lock of reservations.
func TestAudit_TableLocked_ReturnsError(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	tx, err := s.backends.Postgres.Begin(t.Context())
	s.must(err)
	defer func() { _ = tx.Rollback(context.Background()) }() // it has written nothing
	_, err = tx.Exec(t.Context(), `LOCK TABLE reservations IN ACCESS EXCLUSIVE MODE`)
	s.must(err)
	for name, check := range map[string]func() error{
		"audit": func() error {
			_, err := audit.Run(stacktest.WaitContext(t), s.backends, audit.Options{})
			return err
		},
		"reconciler": func() error { return s.newReconciler(true).Round(stacktest.WaitContext(t)) },
	} {
		err := check()
		if !postgres.HasCode(err, postgres.CodeLockNotAvailable) ||
			!strings.Contains(err.Error(), "reservations: another session") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestIsPast_SlotsOfHold_OnlyNightsOverForADay checks which sales may lack their reservation.
func TestIsPast_SlotsOfHold_OnlyNightsOverForADay(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	for hold, want := range map[string]bool{
		`{"check_in":"2026-03-06","check_out":"2026-03-09"}`:                    true,
		`{"check_in":"2026-03-06","check_out":"2026-03-10"}`:                    false,
		`{"check_in":"2026-12-01","check_out":"2026-12-02"}`:                    false,
		`{"slots":["2026-03-08","2025-01-01"],"quantity":1,"metadata":{"a":1}}`: true,
		`{"slots":["2026-03-08","2026-03-09"]}`:                                 false,
		`{"slots":["2026-03-08","A-1"]}`:                                        false,
		`{"slots":["A-1"]}`:                                                     false,
		`{"resource_id":"stock"}`:                                               false,
		`{"check_in":"2026-03-06"}`:                                             false,
		`{}`:                                                                    false,
		`null`:                                                                  false,
		``:                                                                      false,
	} {
		if got := audit.IsPast(hold, at); got != want {
			t.Errorf("%s: %v, want %v", hold, got, want)
		}
		if audit.IsPast(hold, at.Add(-time.Millisecond)) {
			t.Errorf("%s: past a moment before", hold)
		}
	}
}
