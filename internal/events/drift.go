package events

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ConfigDrift is a difference between a stream or consumer and its wanted configuration that does
// harm.
type ConfigDrift struct {
	Found        string // like "its storage is memory"
	Impact       string // what happens because of it
	Fix          string // how to repair it: a command, or an instruction
	Fatal        bool   // it breaks a promise; otherwise it is a risk
	FixedBySetup bool   // Setup repairs it, so a worker that migrates can start
}

func (f ConfigDrift) String() string { return f.Found + ": " + f.Impact + "; " + f.Fix }

const recreate = "this setting cannot be changed: stop the publishers, wait until all events are answered, stop the workers, " +
	"back up the stream (nats stream backup), remove it, and run worker migrate"

// fixMigrate is the fix of what Setup repairs.
const fixMigrate = "worker migrate"

// DiffStream compares a stream with the one that Setup creates. A difference that does no harm is
// not reported, like more replicas, a longer retention, or a limit of size.
func (ns Namespace) DiffStream(found, wanted jetstream.StreamConfig, retention Retention) (drifts []ConfigDrift) {
	edit := func(flags string) string { return editStream(wanted.Name, flags) }
	add := func(fatal bool, found, impact, fix string) {
		drifts = append(drifts, ConfigDrift{found, impact, fix, fatal, fix == fixMigrate})
	}
	inbound := wanted.Name == ns.InStream()

	if found.Storage != wanted.Storage {
		add(true, fmt.Sprintf("its storage is %s, want file", found.Storage),
			"a restart of NATS loses acknowledged messages", recreate)
	}
	if found.Retention != wanted.Retention {
		add(true, fmt.Sprintf("its retention is %s, want limits", found.Retention),
			"an event that one consumer has acknowledged is removed for all others", recreate)
	}
	if found.Discard != wanted.Discard {
		impact := map[string]string{
			ns.InStream():   "it removes events that are not answered",
			ns.OutStream():  "it stores no more outcomes, and no event is answered",
			ns.DLQStream():  "it removes dead letters",
			ns.RunsStream(): "it stores no more runs, and no dead letter is replayed or discarded",
		}[wanted.Name]
		want := DiscardName(wanted.Discard)
		add(true, fmt.Sprintf("it discards %s messages, want %s", DiscardName(found.Discard), want),
			"when it is full, "+impact, edit("--discard "+want))
	}
	if found.NoAck {
		add(true, "it sends no acks", "publishers and workers cannot know whether a message is stored", edit("--ack"))
	}
	if found.AllowDirect { // as "nats stream add" creates it
		add(false, "it allows direct reads", "a replica that is behind may answer that a message does not exist, and the "+
			"users of deployments/nats may not read one: then their workers decide nothing",
			edit("--no-allow-direct")+"\nand restart the workers, which remember it")
	}
	if found.Sealed {
		add(true, "it is sealed", "it stores no more messages", recreate)
	}
	ns.diffSubjects(found, wanted, add)
	if found.MaxMsgsPerSubject > 0 {
		add(true, fmt.Sprintf("it keeps %d messages of a subject", found.MaxMsgsPerSubject),
			"events of the same resource replace each other", edit("--max-msgs-per-subject=-1"))
	}
	ns.diffRemovals(found, wanted, add)
	ns.diffAge(found, wanted, retention, add)
	if inbound && found.MaxMsgSize > 0 && found.MaxMsgSize < wanted.MaxMsgSize || !inbound && found.MaxMsgSize > 0 {
		want := "-1"
		if inbound {
			want = fmt.Sprint(wanted.MaxMsgSize)
		}
		add(false, fmt.Sprintf("it allows messages of at most %d bytes, want %s", found.MaxMsgSize, want),
			"it refuses larger messages that the contract allows", edit("--max-msg-size="+want))
	}
	ns.diffStored(found, wanted, add)
	ns.diffDuplicates(found, wanted, add)
	return drifts
}

func editStream(name, flags string) string { return "nats stream edit " + name + " --force " + flags }

// addDrift adds a drift of a stream.
type addDrift func(fatal bool, found, impact, fix string)

// diffSubjects compares what a stream stores. A lost one may be a mirror while its messages are copied back.
func (ns Namespace) diffSubjects(found, wanted jetstream.StreamConfig, add addDrift) {
	subject := wanted.Subjects[0]
	switch flags := "--subjects '" + subject + "'"; {
	case found.Mirror != nil: // which has no subjects
		add(true, "it is a mirror of "+found.Mirror.Name, "it stores only what that stream has",
			editStream(wanted.Name, "--no-mirror "+flags)+"\nwhen it has all messages of that stream, with NATS 2.12 or newer")
	case !slices.Contains(found.Subjects, subject):
		add(true, fmt.Sprintf("its subjects are %q, want %s", found.Subjects, subject),
			"events on other subjects are not stored", editStream(wanted.Name, flags))
	}
}

// diffRemovals compares what programs may remove.
func (ns Namespace) diffRemovals(found, wanted jetstream.StreamConfig, add addDrift) {
	switch {
	case wanted.Name == ns.InStream() && (found.DenyPurge || found.DenyDelete):
		add(false, "it denies purges, or the removal of single messages",
			"no event is ever removed from it, and it grows until it is full", recreate)
	case wanted.Name == ns.DLQStream() && found.DenyDelete:
		add(false, "it denies the removal of single messages",
			"a dead letter stays when it is replayed or discarded, and each replay publishes its event again", recreate)
	}
}

// diffStored compares what becomes of a message that was acknowledged. Only in the inbound stream do others
// than workers publish, whose headers could remove messages.
func (ns Namespace) diffStored(found, wanted jetstream.StreamConfig, add addDrift) {
	inbound := wanted.Name == ns.InStream()
	if inbound && found.AllowMsgTTL {
		add(true, "it allows time limits of messages", "an event with a header Nats-TTL is removed before it is answered", recreate)
	}
	if inbound && found.AllowRollup {
		add(true, "it allows roll-ups", "an event with a header Nats-Rollup removes others that are not answered",
			editStream(wanted.Name, "--no-allow-rollup"))
	}
	if moves := found.SubjectTransform; moves != nil && SubjectsOverlap(cmp.Or(moves.Source, ">"), wanted.Subjects[0]) {
		add(true, fmt.Sprintf("it stores messages on %q under %q", moves.Source, moves.Destination), "no worker reads them",
			editStream(wanted.Name, "--no-transform\nand publish again what it has stored under other subjects"))
	}
	if found.PersistMode != wanted.PersistMode {
		add(true, "its persist mode is async", "a crash of NATS loses acknowledged messages, which it had not written yet",
			recreate)
	}
}

// SubjectsOverlap reports whether two subjects, which may have wildcards, match a common one.
func SubjectsOverlap(a, b string) bool {
	tokens, others := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(tokens), len(others)) {
		switch token, other := tokens[i], others[i]; {
		case token == ">", other == ">":
			return true
		case token != "*" && other != "*" && token != other:
			return false
		}
	}
	return len(tokens) == len(others)
}

// diffDuplicates compares the duplicate window: in the inbound stream, where events of different sources may have the
// same message id, it must be short, elsewhere long enough for a worker that publishes again.
func (ns Namespace) diffDuplicates(found, wanted jetstream.StreamConfig, add addDrift) {
	inbound := wanted.Name == ns.InStream()
	switch {
	case inbound && found.Duplicates > wanted.Duplicates:
		add(true, fmt.Sprintf("its duplicate window is %s, want %s", found.Duplicates, wanted.Duplicates),
			"of two events from different sources with the same Nats-Msg-Id it drops the second, which then has no outcome",
			fixMigrate)
	case !inbound && found.Duplicates < wanted.Duplicates:
		add(false, fmt.Sprintf("its duplicate window is %s, want at least %s", found.Duplicates, wanted.Duplicates),
			"a worker that was disconnected may store the same outcome twice, and its readers have to drop one by its id",
			editStream(wanted.Name, "--dupe-window "+wanted.Duplicates.String()))
	}
}

// diffAge compares how long messages are kept.
func (ns Namespace) diffAge(found, wanted jetstream.StreamConfig, retention Retention, add addDrift) {
	keep := editStream(wanted.Name, "--max-age "+wanted.MaxAge.String()) // 0s: without a limit
	switch {
	case found.MaxAge <= 0:
	case wanted.Name == ns.OutStream() && found.MaxAge < retention.HoldLifetime:
		add(true, fmt.Sprintf("its messages are kept for %s, less than the longest life of a hold (%s)",
			found.MaxAge, retention.HoldLifetime),
			"holds cannot be rebuilt from it after Redis has lost them", keep)
	case wanted.Name == ns.OutStream() && found.MaxAge < retention.HoldLifetime+retention.AnswerTTL:
		add(false, fmt.Sprintf("its messages are kept for %s, less than answers are remembered (%s)",
			found.MaxAge, retention.HoldLifetime+retention.AnswerTTL),
			"after Redis has lost its data, older answers are forgotten: a repeated request is granted a second time", keep)
	case wanted.MaxAge == 0:
		add(false, fmt.Sprintf("its messages are kept for %s", found.MaxAge),
			"older ones are removed, processed or not; an outage may last longer", keep)
	}
}

// DiscardName returns which messages a full stream discards: "old" or "new".
func DiscardName(d jetstream.DiscardPolicy) string {
	if d == jetstream.DiscardNew {
		return "new"
	}
	return "old"
}

// The ack waits with which workers keep their promises: a worker extends a shorter one too late, and after a
// longer one the events of a killed worker are taken up later than within 30 seconds. Workers start with any
// of these, so that neighbouring versions may have different ones.
const (
	ackWaitMin = ackWait / 2
	ackWaitMax = 25 * time.Second
)

// losesEvents reports whether a durable consumer must be recreated. It may have skipped events that it should
// have delivered, so that its ack floor says nothing about them: by its filters, its acks or its deliveries. More
// filters than wanted do no harm: workers of another version may need them. Or it replays too slowly, which no
// update repairs.
func losesEvents(found, wanted jetstream.ConsumerConfig) bool {
	filters := filtersOf(found)
	skips := func(subjects string) bool { return len(filters) > 0 && !slices.Contains(filters, subjects) }
	return found.AckPolicy != wanted.AckPolicy || found.MaxDeliver != wanted.MaxDeliver || found.HeadersOnly ||
		found.ReplayPolicy != wanted.ReplayPolicy || slices.ContainsFunc(wanted.FilterSubjects, skips)
}

// stopsEvents reports whether a durable consumer refuses the requests of workers, or delivers nothing while some events
// wait. To update it repairs that.
func stopsEvents(found jetstream.ConsumerConfig) bool {
	return hasPullLimits(found) || found.MaxAckPending != ackPendingMax
}

// hasPullLimits reports whether a consumer limits requests for events: it refuses those of workers that exceed a limit.
func hasPullLimits(config jetstream.ConsumerConfig) bool {
	return config.MaxRequestBatch > 0 || config.MaxRequestExpires > 0 || config.MaxRequestMaxBytes > 0
}

// filtersOf returns the filters of a consumer, none for all subjects.
func filtersOf(config jetstream.ConsumerConfig) []string {
	if config.FilterSubject != "" {
		return []string{config.FilterSubject}
	}
	return config.FilterSubjects
}

// DiffConsumer compares a durable consumer with the wanted one. Setup repairs each difference.
func DiffConsumer(found, wanted jetstream.ConsumerConfig) (drifts []ConfigDrift) {
	const fix = "run worker migrate, which repairs it"
	add := func(found, impact string) { drifts = append(drifts, ConfigDrift{found, impact, fix, true, true}) }
	filters := filtersOf(found)
	if !slices.Equal(slices.Sorted(slices.Values(filters)), slices.Sorted(slices.Values(wanted.FilterSubjects))) {
		add(fmt.Sprintf("its filters are %q, want %q", filters, wanted.FilterSubjects),
			"some events are processed by no consumer, or by the wrong one")
	}
	if found.AckPolicy != wanted.AckPolicy {
		add(fmt.Sprintf("its acks are %s, want %s", found.AckPolicy, wanted.AckPolicy), "events are lost when a worker dies")
	}
	if found.MaxDeliver != wanted.MaxDeliver {
		add(fmt.Sprintf("it delivers at most %d times", found.MaxDeliver),
			"after an outage, the server silently stops to deliver events that have no answer")
	}
	if found.AckWait != wanted.AckWait {
		add(fmt.Sprintf("it waits %s for an ack, want %s", found.AckWait, wanted.AckWait),
			"events of a killed worker are delivered again too late, or those of a running one twice")
		drifts[len(drifts)-1].Fatal = found.AckWait < ackWaitMin || found.AckWait > ackWaitMax
	}
	if found.ReplayPolicy != wanted.ReplayPolicy {
		add(fmt.Sprintf("it replays at %s speed, want %s", found.ReplayPolicy, wanted.ReplayPolicy),
			"after an outage, events wait for as long as it lasted")
	}
	if found.HeadersOnly {
		add("it delivers headers only", "no event can be read")
	}
	if found.MaxAckPending != wanted.MaxAckPending {
		add(fmt.Sprintf("%d may wait for an ack, want %d", found.MaxAckPending, wanted.MaxAckPending),
			"events that wait for a retry block all others")
	}
	if hasPullLimits(found) {
		add(fmt.Sprintf("a request may have %d events, %d bytes and %s (0: no limit), want no limit", found.MaxRequestBatch,
			found.MaxRequestMaxBytes, found.MaxRequestExpires), "it refuses the requests of workers, and no event is answered")
	}
	return drifts
}
