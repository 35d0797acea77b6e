package events

import (
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Fault is what is wrong with a stream or consumer that somebody else has made or changed.
type Fault struct {
	Found  string // like "its storage is memory"
	Why    string // what would come of it
	Fix    string // what mends it: a command, or words
	Breaks bool   // a promise, else it is a risk
	Setup  bool   // removes it: a worker that migrates need not refuse
}

func (f Fault) String() string { return f.Found + ": " + f.Why + "; " + f.Fix }

// StreamFaults compares a stream with what Setup would have made of it. What is as good or better
// is no fault: more replicas, a longer life, a limit of size.
func (ns Subjects) StreamFaults(found, wanted jetstream.StreamConfig, reach Reach) (faults []Fault) {
	edit := func(flags string) string { return "nats stream edit " + wanted.Name + " --force " + flags }
	const anew = "that cannot be changed: stop the workers, keep what is in it (nats stream backup), remove it, and run worker migrate"
	fault := func(breaks bool, found, why, fix string) {
		faults = append(faults, Fault{Found: found, Why: why, Fix: fix, Breaks: breaks})
	}
	inbound := wanted.Name == ns.InStream()

	if found.Storage != wanted.Storage {
		fault(true, fmt.Sprintf("its storage is %s, want file", found.Storage), "a restart of NATS loses what it has acknowledged", anew)
	}
	if found.Retention != wanted.Retention {
		fault(true, fmt.Sprintf("its retention is %s, want limits", found.Retention), "what one consumer has acknowledged is gone for all others", anew)
	}
	if found.Discard != wanted.Discard {
		why := "when it is full, nothing can be stored in it any more, and no event is answered"
		if wanted.Discard == jetstream.DiscardNew {
			why = "when it is full, it forgets events that nobody has answered"
		}
		fault(true, fmt.Sprintf("it discards %s messages, want %s", DiscardWord(found.Discard), DiscardWord(wanted.Discard)), why, edit("--discard "+DiscardWord(wanted.Discard)))
	}
	if found.NoAck {
		fault(true, "it acknowledges nothing", "nobody knows whether an event or its outcome is stored", edit("--ack"))
	}
	if inbound && (found.DenyPurge || found.DenyDelete) {
		fault(false, "it allows no purge, or no removal of single messages", "no event is ever removed from it, and it grows until it is full", anew)
	}
	if found.Sealed {
		fault(true, "it is sealed", "nothing can be stored in it any more", anew)
	}
	if subject := wanted.Subjects[0]; !slices.Contains(found.Subjects, subject) {
		fault(true, fmt.Sprintf("its subjects are %q, want %s", found.Subjects, subject),
			"what is published on others is not stored", edit("--subjects '"+subject+"'"))
	}
	if found.MaxMsgsPerSubject > 0 {
		fault(true, fmt.Sprintf("it keeps %d messages of a subject", found.MaxMsgsPerSubject),
			"events about the same resource push each other out", edit("--max-msgs-per-subject=-1"))
	}
	switch {
	case found.MaxAge <= 0:
	case wanted.Name == ns.OutStream() && found.MaxAge < reach.Life:
		fault(true, fmt.Sprintf("its messages live %s, less than a hold can (%s)", found.MaxAge, reach.Life),
			"holds cannot be rebuilt from it when Redis has lost them", edit(fmt.Sprintf("--max-age %s", wanted.MaxAge)))
	case wanted.Name == ns.OutStream() && found.MaxAge < reach.Life+reach.Memory:
		fault(false, fmt.Sprintf("its messages live %s, less than what is told of a hold is remembered (%s)", found.MaxAge, reach.Life+reach.Memory),
			"when Redis has lost its data, older answers are forgotten: a request that is asked again is granted anew", edit(fmt.Sprintf("--max-age %s", wanted.MaxAge)))
	case wanted.MaxAge == 0:
		fault(false, fmt.Sprintf("its messages live %s", found.MaxAge),
			"what is older is forgotten, whether or not somebody has seen to it; an outage may last longer", edit("--max-age 0s"))
	}
	if inbound && found.MaxMsgSize > 0 && found.MaxMsgSize < wanted.MaxMsgSize || !inbound && found.MaxMsgSize > 0 {
		want := "-1"
		if inbound {
			want = fmt.Sprint(wanted.MaxMsgSize)
		}
		fault(false, fmt.Sprintf("its messages have at most %d bytes, want %s", found.MaxMsgSize, want),
			"larger ones are refused that the contract allows", edit("--max-msg-size="+want))
	}
	if inbound && found.Duplicates > wanted.Duplicates {
		faults = append(faults, Fault{fmt.Sprintf("its duplicate window is %s, want %s", found.Duplicates, wanted.Duplicates),
			"of two events with the same Nats-Msg-Id, from different sources, it drops the second, which has no outcome",
			"worker migrate", true, true})
	}
	if !inbound && found.Duplicates < wanted.Duplicates {
		fault(false, fmt.Sprintf("it knows repeats for %s, want %s", found.Duplicates, wanted.Duplicates),
			"a worker that was cut off may store the same outcome again, which consumers have to drop by its id",
			edit(fmt.Sprintf("--dupe-window %s", wanted.Duplicates)))
	}
	return faults
}

// DiscardWord is what a full stream does without: its old messages, or new ones.
func DiscardWord(d jetstream.DiscardPolicy) string {
	if d == jetstream.DiscardNew {
		return "new"
	}
	return "old"
}

// ConsumerFaults compares a consumer with what Setup makes of it at every start of a worker that
// migrates.
func ConsumerFaults(found, wanted jetstream.ConsumerConfig) (faults []Fault) {
	const fix = "run worker migrate, which sets it right"
	fault := func(found, why string) { faults = append(faults, Fault{found, why, fix, true, true}) }
	filters := found.FilterSubjects
	if found.FilterSubject != "" {
		filters = []string{found.FilterSubject}
	}
	if !slices.Equal(slices.Sorted(slices.Values(filters)), slices.Sorted(slices.Values(wanted.FilterSubjects))) {
		fault(fmt.Sprintf("it takes %q, want %q", filters, wanted.FilterSubjects), "events are taken by no consumer, or by the wrong one")
	}
	if found.AckPolicy != wanted.AckPolicy {
		fault(fmt.Sprintf("its acks are %s, want %s", found.AckPolicy, wanted.AckPolicy), "events are lost with a worker that dies")
	}
	if found.MaxDeliver != wanted.MaxDeliver {
		fault(fmt.Sprintf("it delivers at most %d times", found.MaxDeliver), "an event that an outage has kept from being answered is parked without a word")
	}
	if found.AckWait != wanted.AckWait {
		fault(fmt.Sprintf("it waits %s for an ack, want %s", found.AckWait, wanted.AckWait), "events of a killed worker are taken up too late, or those of a living one twice")
	}
	if found.MaxAckPending != wanted.MaxAckPending {
		fault(fmt.Sprintf("%d may wait for an ack, want %d", found.MaxAckPending, wanted.MaxAckPending),
			"events that wait to be retried keep all others back")
	}
	return faults
}
