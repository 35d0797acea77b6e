package robustness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Report has the figures of a run and the violations it found.
type Report struct {
	Seed        uint64            `json:"seed"`
	Layout      string            `json:"layout"`
	Strategy    string            `json:"lock_strategy"`
	Nodes       int               `json:"nats_nodes"`
	Workers     int               `json:"workers"`
	Seconds     float64           `json:"seconds"`
	Rounds      int               `json:"rounds"`
	Bursts      int               `json:"bursts"`
	Faults      map[string]int    `json:"faults"`
	LeftOut     map[string]string `json:"left_out"` // faults that cannot strike on this machine, and why
	Events      map[string]int    `json:"events"`   // publications, by kind
	Unknown     int               `json:"unknown"`  // publications that were never acknowledged
	Outcomes    map[string]int    `json:"outcomes"`
	Histories   int               `json:"histories"`
	Operations  int               `json:"operations"` // in them
	Samples     int               `json:"samples"`    // checks of 0 <= reserved <= capacity
	WorkersLost int               `json:"workers_lost"`
	AnsweredMS  []int64           `json:"answered_ms"` // after each burst: from the repair to the last answer; sorted
	Audited     int               `json:"audited"`     // outcomes that audits have read; each burst reads all of its round
	NotChecked  int               `json:"not_judged"`  // slots and holds not checked after a clock went back; maximum per round
	Violations  []string          `json:"violations"`

	mu sync.Mutex
}

func newReport(o Options) *Report {
	return &Report{
		Seed: o.Seed, Layout: o.Layout, Strategy: o.Strategy, Nodes: o.Nodes, Workers: o.Workers, Violations: []string{},
		Faults: make(map[string]int), LeftOut: make(map[string]string),
		Events: make(map[string]int), Outcomes: make(map[string]int),
	}
}

const violationsMax = 100

func (r *Report) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.Violations) < violationsMax {
		r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
	}
}

func (r *Report) countFault(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Faults[kind]++
}

func (r *Report) answeredAfter(d time.Duration) {
	r.AnsweredMS = append(r.AnsweredMS, max(0, d.Milliseconds()))
	slices.Sort(r.AnsweredMS)
}

// count adds the events and the answers of a round.
func (r *Report) count(recorder *Recorder, l *Load) {
	recorder.mu.Lock()
	defer recorder.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, n := range l.kinds {
		r.Events[kind] += n
	}
	for outcome, n := range recorder.counts {
		r.Outcomes[outcome] += n
	}
	r.Unknown += int(l.unknown.Load())
}

// sample checks every 20 ms, over its own connection, that no slot in Postgres has more reserved than
// its capacity. It reconnects until ctx is done.
func (r *Report) sample(ctx context.Context, s *Cluster) {
	const every = 20 * time.Millisecond
	query := "SELECT count(*) FROM " + s.Namespace + ".inventory WHERE reserved < 0 OR reserved > capacity"
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, s.writerURL())
		if err != nil {
			wait(ctx, 10*every)
			continue
		}
		for ctx.Err() == nil {
			var oversold int
			bounded, cancel := context.WithTimeout(ctx, startWithin)
			err := conn.QueryRow(bounded, query).Scan(&oversold)
			cancel()
			if err != nil {
				break
			}
			r.mu.Lock()
			r.Samples++
			r.mu.Unlock()
			if oversold > 0 {
				r.violate("%d slots break 0 <= reserved <= capacity", oversold)
			}
			wait(ctx, every)
		}
		_ = conn.Close(context.WithoutCancel(ctx)) // a fault may have ended it
	}
}

// total returns the sum of the counts.
func total(counts map[string]int) (n int) {
	for _, some := range counts {
		n += some
	}
	return n
}

// Markdown returns the report in the form of the tables in docs/faults.md.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Seed %d, layout `%s`, %d workers, lock strategy `%s`, %d node(s) of NATS: %.0f s, %d rounds, %d bursts.\n\n",
		r.Seed, r.Layout, r.Workers, r.Strategy, r.Nodes, r.Seconds, r.Rounds, r.Bursts)
	fmt.Fprintf(&b, "| what | figure |\n|---|---|\n")
	fmt.Fprintf(&b, "| faults | %d, of %d kinds |\n", total(r.Faults), len(r.Faults))
	fmt.Fprintf(&b, "| publications | %d, of which %d were never acknowledged |\n", total(r.Events), r.Unknown)
	fmt.Fprintf(&b, "| outcomes and dead letters | %d |\n", total(r.Outcomes))
	fmt.Fprintf(&b, "| histories of one slot | %d, with %d operations |\n", r.Histories, r.Operations)
	fmt.Fprintf(&b, "| outcomes audited, each after each burst of its round | %d |\n", r.Audited)
	fmt.Fprintf(&b, "| checks of `0 <= reserved <= capacity` | %d |\n", r.Samples)
	if n := len(r.AnsweredMS); n > 0 {
		fmt.Fprintf(&b, "| from the repair to the last answer | median %.1f s, maximum %.1f s |\n",
			float64(r.AnsweredMS[n/2])/1000, float64(r.AnsweredMS[n-1])/1000)
	}
	fmt.Fprintf(&b, "| worker processes that ended | %d |\n", r.WorkersLost)
	fmt.Fprintf(&b, "| violations | %d |\n", len(r.Violations))
	for _, table := range []struct {
		head   string
		counts map[string]int
	}{{"fault", r.Faults}, {"event", r.Events}, {"outcome", r.Outcomes}} {
		fmt.Fprintf(&b, "\n| %s | times |\n|---|---|\n", table.head)
		for _, name := range slices.Sorted(maps.Keys(table.counts)) {
			fmt.Fprintf(&b, "| %s | %d |\n", name, table.counts[name])
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(r.LeftOut)) {
		fmt.Fprintf(&b, "\nLeft out: %s: %s.\n", kind, r.LeftOut[kind])
	}
	return b.String()
}
