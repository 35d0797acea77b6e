package events

import (
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// ConfigDrift is what is wrong with a stream or consumer that somebody else has made or changed.
type ConfigDrift struct {
	Found        string // like "its storage is memory"
	Impact       string // what would come of it
	Fix          string // what mends it: a command, or words
	Fatal        bool   // a promise, else it is a risk
	FixedBySetup bool   // removes it: a worker that migrates need not refuse
}

func (f ConfigDrift) String() string { return f.Found + ": " + f.Impact + "; " + f.Fix }

// DiffStream compares a stream with what Setup would have made of it. What is as good or better
// is no fault: more replicas, a longer life, a limit of size.
func (ns Namespace) DiffStream(found, wanted jetstream.StreamConfig, retention Retention) (drifts []ConfigDrift) {
	edit := func(flags string) string { return "nats stream edit " + wanted.Name + " --force " + flags }
	const recreate = "that cannot be changed: stop the workers, keep what is in it (nats stream backup), remove it, and run worker migrate"
	add := func(breaks bool, found, why, fix string) {
		drifts = append(drifts, ConfigDrift{Found: found, Impact: why, Fix: fix, Fatal: breaks})
	}
	inbound := wanted.Name == ns.InStream()

	if found.Storage != wanted.Storage {
		add(true, fmt.Sprintf("its storage is %s, want file", found.Storage), "a restart of NATS loses what it has acknowledged", recreate)
	}
	if found.Retention != wanted.Retention {
		add(true, fmt.Sprintf("its retention is %s, want limits", found.Retention), "what one consumer has acknowledged is gone for all others", recreate)
	}
	if found.Discard != wanted.Discard {
		why := "when it is full, nothing can be stored in it any more, and no event is answered"
		if wanted.Discard == jetstream.DiscardNew {
			why = "when it is full, it forgets events that nobody has answered"
		}
		add(true, fmt.Sprintf("it discards %s messages, want %s", DiscardName(found.Discard), DiscardName(wanted.Discard)), why, edit("--discard "+DiscardName(wanted.Discard)))
	}
	if found.NoAck {
		add(true, "it acknowledges nothing", "nobody knows whether an event or its outcome is stored", edit("--ack"))
	}
	if inbound && (found.DenyPurge || found.DenyDelete) {
		add(false, "it allows no purge, or no removal of single messages", "no event is ever removed from it, and it grows until it is full", recreate)
	}
	if found.Sealed {
		add(true, "it is sealed", "nothing can be stored in it any more", recreate)
	}
	if subject := wanted.Subjects[0]; !slices.Contains(found.Subjects, subject) {
		add(true, fmt.Sprintf("its subjects are %q, want %s", found.Subjects, subject),
			"what is published on others is not stored", edit("--subjects '"+subject+"'"))
	}
	if found.MaxMsgsPerSubject > 0 {
		add(true, fmt.Sprintf("it keeps %d messages of a subject", found.MaxMsgsPerSubject),
			"events about the same resource push each other out", edit("--max-msgs-per-subject=-1"))
	}
	switch {
	case found.MaxAge <= 0:
	case wanted.Name == ns.OutStream() && found.MaxAge < retention.HoldLifetime:
		add(true, fmt.Sprintf("its messages live %s, less than a hold can (%s)", found.MaxAge, retention.HoldLifetime),
			"holds cannot be rebuilt from it when Redis has lost them", edit(fmt.Sprintf("--max-age %s", wanted.MaxAge)))
	case wanted.Name == ns.OutStream() && found.MaxAge < retention.HoldLifetime+retention.AnswerTTL:
		add(false, fmt.Sprintf("its messages live %s, less than what is told of a hold is remembered (%s)", found.MaxAge, retention.HoldLifetime+retention.AnswerTTL),
			"when Redis has lost its data, older answers are forgotten: a request that is asked again is granted anew", edit(fmt.Sprintf("--max-age %s", wanted.MaxAge)))
	case wanted.MaxAge == 0:
		add(false, fmt.Sprintf("its messages live %s", found.MaxAge),
			"what is older is forgotten, whether or not somebody has seen to it; an outage may last longer", edit("--max-age 0s"))
	}
	if inbound && found.MaxMsgSize > 0 && found.MaxMsgSize < wanted.MaxMsgSize || !inbound && found.MaxMsgSize > 0 {
		want := "-1"
		if inbound {
			want = fmt.Sprint(wanted.MaxMsgSize)
		}
		add(false, fmt.Sprintf("its messages have at most %d bytes, want %s", found.MaxMsgSize, want),
			"larger ones are refused that the contract allows", edit("--max-msg-size="+want))
	}
	if inbound && found.Duplicates > wanted.Duplicates {
		drifts = append(drifts, ConfigDrift{fmt.Sprintf("its duplicate window is %s, want %s", found.Duplicates, wanted.Duplicates),
			"of two events with the same Nats-Msg-Id, from different sources, it drops the second, which has no outcome",
			"worker migrate", true, true})
	}
	if !inbound && found.Duplicates < wanted.Duplicates {
		add(false, fmt.Sprintf("it knows repeats for %s, want %s", found.Duplicates, wanted.Duplicates),
			"a worker that was cut off may store the same outcome again, which consumers have to drop by its id",
			edit(fmt.Sprintf("--dupe-window %s", wanted.Duplicates)))
	}
	return drifts
}

// DiscardName is what a full stream does without: its old messages, or new ones.
func DiscardName(d jetstream.DiscardPolicy) string {
	if d == jetstream.DiscardNew {
		return "new"
	}
	return "old"
}

// DiffConsumer compares a consumer with what Setup makes of it at every start of a worker that
// migrates.
func DiffConsumer(found, wanted jetstream.ConsumerConfig) (drifts []ConfigDrift) {
	const fix = "run worker migrate, which sets it right"
	add := func(found, why string) { drifts = append(drifts, ConfigDrift{found, why, fix, true, true}) }
	filters := found.FilterSubjects
	if found.FilterSubject != "" {
		filters = []string{found.FilterSubject}
	}
	if !slices.Equal(slices.Sorted(slices.Values(filters)), slices.Sorted(slices.Values(wanted.FilterSubjects))) {
		add(fmt.Sprintf("it takes %q, want %q", filters, wanted.FilterSubjects), "events are taken by no consumer, or by the wrong one")
	}
	if found.AckPolicy != wanted.AckPolicy {
		add(fmt.Sprintf("its acks are %s, want %s", found.AckPolicy, wanted.AckPolicy), "events are lost with a worker that dies")
	}
	if found.MaxDeliver != wanted.MaxDeliver {
		add(fmt.Sprintf("it delivers at most %d times", found.MaxDeliver), "an event that an outage has kept from being answered is parked without a word")
	}
	if found.AckWait != wanted.AckWait {
		add(fmt.Sprintf("it waits %s for an ack, want %s", found.AckWait, wanted.AckWait), "events of a killed worker are taken up too late, or those of a living one twice")
	}
	if found.MaxAckPending != wanted.MaxAckPending {
		add(fmt.Sprintf("%d may wait for an ack, want %d", found.MaxAckPending, wanted.MaxAckPending),
			"events that wait to be retried keep all others back")
	}
	return drifts
}
