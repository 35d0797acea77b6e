package robustness

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/audit"
	"holdfast/internal/events"
)

const (
	pollInterval = 100 * time.Millisecond
	logInterval  = 30 * time.Second
	findingsMax  = 20 // listed in a violation
)

// check waits until every event is answered and every hold past its deadline has ended, and reports
// each violation of a promise. It is a violation as well if one of the two waits exceeds hardBound.
// It returns an error only when ctx is done.
func (h *harness) check(ctx context.Context, began, repaired time.Time, histories []*history) error {
	if why := h.awaitQuiet(ctx, h.pendingEvents); why != "" {
		h.report.violate("%s: after %v not every event is answered: %s", h.cluster.Namespace, hardBound, why)
		return nil
	}
	h.report.answeredAfter(h.recorder.lastAnswer().Sub(repaired))
	if why := h.awaitQuiet(ctx, h.overdueHolds); why != "" {
		h.report.violate("%s: after %v not every hold has ended: %s", h.cluster.Namespace, hardBound, why)
		return nil
	}
	for _, violation := range h.recorder.violations() {
		h.report.violate("%s: %s", h.cluster.Namespace, violation)
	}
	for _, hist := range histories {
		h.report.Histories++
		h.report.Operations += len(hist.operations)
		if err := hist.check(); err != nil {
			h.report.violate("%s: %v", h.cluster.Namespace, err)
		}
	}
	var found string
	if why := h.awaitQuiet(ctx, func(ctx context.Context) string { found = h.audit(ctx); return found }); why != "" {
		h.report.violate("%s: %s", h.cluster.Namespace, why)
	}
	h.Log("burst of %.1f s, checked after %.1f s", repaired.Sub(began).Seconds(), time.Since(repaired).Seconds())
	return ctx.Err()
}

// awaitQuiet calls pending until it returns "" or hardBound is over, and returns its last result.
func (h *harness) awaitQuiet(ctx context.Context, pending func(context.Context) string) (why string) {
	began, lastLogged := time.Now(), time.Now()
	for ; ; wait(ctx, pollInterval) {
		if why = pending(ctx); why == "" || ctx.Err() != nil || time.Since(began) > hardBound {
			return why
		}
		if time.Since(lastLogged) > logInterval {
			lastLogged = time.Now()
			h.Log("waiting for %.0f s: %s", time.Since(began).Seconds(), why)
		}
	}
}

// pendingEvents returns a description of events without an answer, "" when all are answered.
func (h *harness) pendingEvents(ctx context.Context) string {
	if n, some := h.recorder.unanswered(); n > 0 {
		return fmt.Sprintf("%d events have no answer, for example %v", n, some)
	}
	within, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for _, name := range consumers {
		c, err := h.js.Consumer(within, h.subjects.InStream(), name)
		if err != nil {
			return fmt.Sprintf("consumer %s: %v", name, err)
		}
		if info := c.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
			return fmt.Sprintf("consumer %s has %d undelivered and %d unacknowledged events",
				name, info.NumPending, info.NumAckPending)
		}
	}
	return ""
}

// overdueHolds returns a description of holds past their deadline without an end, "" when there are none.
func (h *harness) overdueHolds(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	client := h.cluster.redisClient()
	now, err := client.Time(ctx).Result()
	if err := errors.Join(err, client.Close()); err != nil {
		return err.Error()
	}
	if n, some := h.recorder.overdue(now); n > 0 {
		return fmt.Sprintf("%d holds are past their deadline and have not ended, for example %v", n, some)
	}
	return ""
}

// audit returns the findings of the audit, "" when there are none.
func (h *harness) audit(ctx context.Context) string {
	report, err := h.cluster.audit(ctx, h.js)
	if err != nil {
		return err.Error()
	}
	if h.cluster.clock < 0 {
		// Both checks compare times of Redis' clock. When the clock went back, some times occurred
		// twice. And a rebuild of Redis by that clock treats holds as expired that were live.
		inconclusive := 0
		for _, kind := range []audit.Kind{audit.Oversold, audit.TwoGrants} {
			inconclusive += report.Counts[kind]
			delete(report.Counts, kind)
			report.Findings = slices.DeleteFunc(report.Findings, func(f *audit.Finding) bool { return f.Kind == kind })
		}
		h.report.NotChecked = max(h.report.NotChecked, inconclusive)
	}
	if report.Unrepaired() == 0 && report.Pending.Events == 0 {
		h.report.Audited += report.Stats.Outcomes
		return ""
	}
	text := fmt.Sprintf("audit found %d differences and %d pending events", report.Unrepaired(), report.Pending.Events)
	for i, f := range report.Findings {
		if i == findingsMax {
			text += "\n  ..."
			break
		}
		text += fmt.Sprintf("\n  %s: %s (found %s, expected %s)", f.Kind, f.Text, f.Found, f.Expected)
	}
	return text
}

// audit runs the audit of internal/audit without proxies.
func (s *Cluster) audit(ctx context.Context, js jetstream.JetStream) (report *audit.Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, hardBound)
	defer cancel()
	pool, err := audit.OpenPostgres(ctx, s.writerURL(), s.Namespace)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	client := s.redisClient()
	backends := audit.Backends{Namespace: s.Namespace, JetStream: js, Redis: client, Postgres: pool}
	report, err = audit.Run(ctx, backends, audit.Options{CapacityByEvents: !s.capacityBySQL})
	return report, errors.Join(err, client.Close())
}

// migrate runs `worker migrate` with the flags of a policy, and gives each stream one replica per node.
func (s *Cluster) migrate(ctx context.Context, policy ...string) error {
	ctx, cancel := context.WithTimeout(ctx, hardBound)
	defer cancel()
	if err := s.awaitLeader(ctx); err != nil {
		return err
	}
	args := slices.Concat([]string{"migrate"}, s.workerFlags(), policy)
	out, err := exec.CommandContext(ctx, s.Binary, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("worker migrate: %w\n%s", err, out)
	}
	if len(s.nats) == 1 {
		return nil
	}
	for _, name := range s.streams() {
		err := s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
			stream, err := js.Stream(ctx, name)
			if err != nil {
				return err
			}
			config := stream.CachedInfo().Config
			config.Replicas = len(s.nats)
			_, err = js.UpdateStream(ctx, config)
			return err
		})
		if err != nil {
			return fmt.Errorf("set replicas of %s: %w", name, err)
		}
	}
	return nil
}

// streams returns the names of all streams of the namespace.
func (s *Cluster) streams() []string {
	ns := events.Namespace(s.Namespace)
	return []string{ns.InStream(), ns.OutStream(), ns.DLQStream(), ns.RunsStream()}
}

// awaitLeader waits until JetStream has a leader and can create a stream with one replica per node.
func (s *Cluster) awaitLeader(ctx context.Context) error {
	const probe = "PROBE"
	err := s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		config := jetstream.StreamConfig{Name: probe, Replicas: len(s.nats)}
		if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
			return err
		}
		return js.DeleteStream(ctx, probe)
	})
	if err != nil {
		return fmt.Errorf("jetstream has no leader: %w", err)
	}
	return nil
}

// removeNamespace deletes the streams, the schema and all Redis data of the namespace.
func (s *Cluster) removeNamespace(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	var errs []error
	for _, name := range s.streams() {
		errs = append(errs, js.DeleteStream(ctx, name))
	}
	shards, err := s.awaitShards(ctx)
	errs = append(errs, err)
	for _, one := range shards {
		errs = append(errs, one.flush(ctx))
	}
	return errors.Join(append(errs,
		s.withPostgres(ctx, func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, "DROP SCHEMA "+s.Namespace+" CASCADE")
			return err
		}))...)
}

// dropProxies closes the proxies of a round.
func (s *Cluster) dropProxies() error {
	var errs []error
	for _, server := range s.all() {
		errs = append(errs, server.closeProxies())
	}
	s.Load = nil
	return errors.Join(errs...)
}
