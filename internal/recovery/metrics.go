package recovery

import (
	"strings"

	"holdfast/internal/telemetry"
)

// Some causes of a rebuild, see causes.
const (
	causeAnotherServer = "another_server"
	causeNewerEpoch    = "newer_epoch"
	causeCorruption    = "corruption"
	causeLostCommits   = "lost_commits"
)

// The kinds of a completed rebuild: the label kind.
const (
	kindResumed = "resumed"
	kindRebuilt = "rebuilt"
)

// causes maps how the reason of an invalid epoch begins to the label cause. Any other reason describes
// corruption.
var causes = []struct{ prefix, cause string }{
	{"epoch missing", "epoch_missing"},
	{"older epoch", "older_epoch"},
	{"newer epoch", causeNewerEpoch},
	{anotherServer, causeAnotherServer},
	{"requested", "requested"},
	{lostCommitsWhy, causeLostCommits},
	{notComparedWhy, causeLostCommits},
}

func causeOf(why string) string {
	for _, c := range causes {
		if strings.HasPrefix(why, c.prefix) {
			return c.cause
		}
	}
	return causeCorruption
}

// Metrics are the metrics of rebuilds.
type Metrics struct {
	rebuilds          *telemetry.Vec[telemetry.Counter]
	failed            *telemetry.Counter
	running, progress *telemetry.Gauge
	took              *telemetry.Gauge
	lostCommits       *telemetry.Gauge
}

// NewMetrics adds the metrics to a set.
func NewMetrics(set *telemetry.Set) *Metrics {
	m := &Metrics{
		rebuilds: set.Counters("holdfast.rebuilds", "{rebuild}",
			"Rebuilds of Redis that this worker has completed, by the cause of the loss and by kind: resumed (only what "+
				"was lost was written again) or rebuilt.", "cause", "kind"),
		failed: set.Counters("holdfast.rebuild.failures", "{rebuild}",
			"Attempts to rebuild Redis that have failed or that another worker has taken over.").With(),
		running: set.Gauges("holdfast.rebuild.running", "",
			"1 while this worker rebuilds Redis. holdfast_not_ready with the reason rebuilding covers all "+
				"workers that wait for it.").With(),
		progress: set.Gauges("holdfast.rebuild.progress", "1",
			"Part of the stored outcomes that the running rebuild has read, 0 when none runs.").With(),
		took: set.Gauges("holdfast.rebuild.last.duration", "s",
			"Time that the last rebuild by this worker took, 0 before the first.").With(),
		lostCommits: set.Gauges("holdfast.lost.commits", "{outcome}",
			"Published outcomes whose commit Postgres has lost and that could not be put back. Nothing is granted on "+
				"their resources.").With(),
	}
	for _, c := range causes {
		m.rebuilds.With(c.cause, kindRebuilt)
	}
	m.rebuilds.With(causeCorruption, kindRebuilt)
	m.rebuilds.With(causeAnotherServer, kindResumed)
	return m
}

// ended records the end of an attempt.
func (m *Metrics) ended(end rebuildEnd) {
	m.running.Set(0)
	m.progress.Set(0)
	switch {
	case end.err == nil:
		kind := kindRebuilt
		if end.result.Resumed {
			kind = kindResumed
		}
		m.rebuilds.With(causeOf(end.why), kind).Add(1)
		m.took.Set(end.result.Took.Seconds())
	case end.begun:
		m.failed.Add(1)
	}
}

// read records how many of the outcomes are read.
func (m *Metrics) read(done, all uint64) {
	if all > 0 {
		m.progress.Set(float64(done) / float64(all))
	}
}
