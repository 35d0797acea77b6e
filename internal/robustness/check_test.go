package robustness

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/audit"
	"holdfast/internal/events"
)

const (
	pollInterval = 100 * time.Millisecond // between two questions whether all is quiet
	logInterval  = 30 * time.Second       // what is being waited for
	findingsMax  = 20                     // that are told one by one
)

// check waits until everything is answered and all holds that can end have ended, and looks for
// what is wrong. Not to come to rest is wrong too.
func (w *harness) check(ctx context.Context, began, healed time.Time, made []*history) error {
	if why := w.awaitQuiet(ctx, w.pendingEvents); why != "" {
		w.report.violate("%s: after %v not every event is answered: %s", w.cluster.Namespace, hardBound, why)
		return nil
	}
	w.report.answeredAfter(w.recorder.lastAnswer().Sub(healed))
	if why := w.awaitQuiet(ctx, w.overdueHolds); why != "" {
		w.report.violate("%s: after %v not every hold has ended: %s", w.cluster.Namespace, hardBound, why)
		return nil
	}
	for _, wrong := range w.recorder.violations() {
		w.report.violate("%s: %s", w.cluster.Namespace, wrong)
	}
	for _, h := range made {
		w.report.Histories++
		w.report.Operations += len(h.operations)
		if err := h.check(); err != nil {
			w.report.violate("%s: %v", w.cluster.Namespace, err)
		}
	}
	var found string
	if why := w.awaitQuiet(ctx, func(ctx context.Context) string { found = w.audit(ctx); return found }); why != "" {
		w.report.violate("%s: %s", w.cluster.Namespace, why)
	}
	w.Log("burst of %.1f s, judged after %.1f s", healed.Sub(began).Seconds(), time.Since(healed).Seconds())
	return ctx.Err()
}

// awaitQuiet asks again until nothing is in the way, "", or the hard bound is over.
func (w *harness) awaitQuiet(ctx context.Context, pending func(context.Context) string) (why string) {
	began, lastLogged := time.Now(), time.Now()
	for ; ; wait(ctx, pollInterval) {
		if why = pending(ctx); why == "" || ctx.Err() != nil || time.Since(began) > hardBound {
			return why
		}
		if time.Since(lastLogged) > logInterval {
			lastLogged = time.Now()
			w.Log("for %.0f s already: %s", time.Since(began).Seconds(), why)
		}
	}
}

// pendingEvents returns what keeps the round from having answered everything.
func (w *harness) pendingEvents(ctx context.Context) string {
	if n, some := w.recorder.unanswered(); n > 0 {
		return fmt.Sprintf("%d events have no answer, like %v", n, some)
	}
	within, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for _, name := range []string{events.ConsumerRequests, events.ConsumerChanges, events.ConsumerPayments} {
		c, err := w.js.Consumer(within, w.subjects.InStream(), name)
		if err != nil {
			return fmt.Sprintf("consumer %s: %v", name, err)
		}
		if info := c.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
			return fmt.Sprintf("consumer %s has %d events to come and %d on their way", name, info.NumPending, info.NumAckPending)
		}
	}
	return ""
}

// overdueHolds returns which holds should have ended.
func (w *harness) overdueHolds(ctx context.Context) string {
	var now time.Time
	err := w.cluster.withRedis(ctx, func(ctx context.Context, c *redis.Client) (err error) {
		now, err = c.Time(ctx).Result()
		return err
	})
	if err != nil {
		return err.Error()
	}
	if n, some := w.recorder.overdue(now); n > 0 {
		return fmt.Sprintf("%d holds are over and nothing tells how they ended, like %v", n, some)
	}
	return ""
}

// audit returns what the checker finds. What a fault has damaged by hand is healed by then.
func (w *harness) audit(ctx context.Context) string {
	report, err := w.cluster.audit(ctx, w.js)
	if err != nil {
		return err.Error()
	}
	if w.cluster.clock < 0 {
		// They compare what was taken at moments of a clock that has told some of them twice; and what Redis is filled
		// with again takes for over what somebody was granted something after, by that clock.
		inconclusive := 0
		for _, kind := range []audit.Kind{audit.Oversold, audit.TwoGrants} {
			inconclusive += report.Counts[kind]
			delete(report.Counts, kind)
			report.Findings = slices.DeleteFunc(report.Findings, func(f *audit.Finding) bool { return f.Kind == kind })
		}
		w.report.NotChecked = max(w.report.NotChecked, inconclusive)
	}
	if report.Unrepaired() == 0 && report.Pending.Events == 0 {
		w.report.audited(report)
		return ""
	}
	text := fmt.Sprintf("the audit finds %d differences and %d pending events", report.Unrepaired(), report.Pending.Events)
	for i, f := range report.Findings {
		if i == findingsMax {
			text += "\n  ..."
			break
		}
		text += fmt.Sprintf("\n  %s: %s (found %s, expected %s)", f.Kind, f.Text, f.Found, f.Expected)
	}
	return text
}

// audit runs the checker, past all proxies.
func (s *Cluster) audit(ctx context.Context, js jetstream.JetStream) (report *audit.Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, hardBound)
	defer cancel()
	pool, err := audit.OpenPostgres(ctx, postgresURL(s.postgres.addr()), s.Namespace)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	client := s.redisClient()
	report, err = audit.Run(ctx, audit.Backends{Namespace: s.Namespace, JetStream: js, Redis: client, Postgres: pool}, audit.Options{CapacityByEvents: !s.capacityBySQL})
	return report, errors.Join(err, client.Close())
}

// migrate makes the namespace, with streams that have a copy on each node and the policy that flags say.
func (s *Cluster) migrate(ctx context.Context, policy ...string) error {
	ctx, cancel := context.WithTimeout(ctx, hardBound)
	defer cancel()
	if err := s.awaitLeader(ctx); err != nil {
		return err
	}
	args := append([]string{
		"migrate", "--namespace", s.Namespace,
		"--nats-url", s.natsURL(), "--redis-url", "redis://" + s.redis.addr() + "/0", "--postgres-url", postgresURL(s.postgres.addr()),
	}, policy...)
	out, err := exec.CommandContext(ctx, s.Binary, args...).CombinedOutput() //nolint:gosec // our own program
	if err != nil {
		return fmt.Errorf("worker migrate: %w\n%s", err, out)
	}
	if len(s.nats) == 1 {
		return nil
	}
	ns := events.Namespace(s.Namespace)
	for _, name := range []string{ns.InStream(), ns.OutStream(), ns.DLQStream(), ns.RunsStream()} {
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
			return fmt.Errorf("copies of %s: %w", name, err)
		}
	}
	return nil
}

// awaitLeader waits until JetStream has a leader, and can make a stream with a copy on each node.
func (s *Cluster) awaitLeader(ctx context.Context) error {
	const probe = "PROBE"
	err := s.withJetStream(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: probe, Replicas: len(s.nats)}); err != nil {
			return err
		}
		return js.DeleteStream(ctx, probe)
	})
	if err != nil {
		return fmt.Errorf("the nodes of NATS do not agree who leads: %w", err)
	}
	return nil
}

// removeNamespace removes all that a namespace has.
func (s *Cluster) removeNamespace(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	ns := events.Namespace(s.Namespace)
	var errs []error
	for _, name := range []string{ns.InStream(), ns.OutStream(), ns.DLQStream(), ns.RunsStream()} {
		errs = append(errs, js.DeleteStream(ctx, name))
	}
	return errors.Join(append(errs,
		s.withRedis(ctx, func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() }),
		s.withPostgres(ctx, func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, "DROP SCHEMA "+s.Namespace+" CASCADE")
			return err
		}))...)
}

// dropProxies ends the proxies of a round.
func (s *Cluster) dropProxies() error {
	var errs []error
	for _, k := range append([]*serverProcess{s.redis, s.postgres}, s.nats...) {
		k.mu.Lock()
		for _, p := range k.proxies {
			errs = append(errs, p.Close())
		}
		k.proxies = nil
		k.mu.Unlock()
	}
	s.Load = nil
	return errors.Join(errs...)
}

// canRebuild reports whether a worker program can fill Redis again.
func canRebuild(ctx context.Context, binary string) bool {
	out, err := exec.CommandContext(ctx, binary, "rebuild", "--help").CombinedOutput()
	return err == nil && strings.Contains(string(out), "--verify")
}
