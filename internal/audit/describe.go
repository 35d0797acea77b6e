package audit

import (
	"fmt"
	"strings"

	"holdfast/internal/record"
)

// notSafe ends the remedy of a finding that Repair does not handle.
const notSafe = "This is not done automatically."

// notice says how differences of one kind in Redis are written.
type notice struct {
	where    string                   // what follows the prefix of the resource's keys, or agenda
	values   func(text string) string // formats what was found and what was expected; nil quotes them
	count    bool                     // in its sentence, what is missing counts as 0
	manual   bool                     // Repair does not repair it
	personal bool                     // it names a user

	// What is said when Redis lacks an entry, when it has one too many, and else. A kind without one of the
	// first two says the third.
	missing, surplus, differs said
	change                    func(f *Finding, prefix string) // completes the finding, unless it is nil
}

// said is a sentence about a difference, and what the operator can do. The sentence has %[1]s for the item,
// %[2]s for the resource, %[3]s for what was found, and %[4]s for what was expected.
type said struct{ text, remedy string }

// describe turns a difference in Redis into a finding.
func (ns keyspace) describe(resource string, d difference) *Finding {
	n := notices[d.kind]
	if n.values == nil {
		n.values = quoted
	}
	f := &Finding{
		Kind: d.kind, Resource: resource, Item: quoted(d.name), Found: n.values(d.found),
		Expected: n.values(d.expected), Automatic: !n.manual, difference: d, personal: n.personal,
	}
	says := n.differs
	switch {
	case d.found == "-" && n.missing != said{}:
		says = n.missing
	case d.expected == "-" && n.surplus != said{}:
		says = n.surplus
	}
	found, expected := f.Found, f.Expected
	if n.count {
		found, expected = counted(found), counted(expected)
	}
	if says != (said{}) {
		f.Text, f.Remedy = fmt.Sprintf(says.text, f.Item, f.Resource, found, expected), says.remedy
	}
	f.Where = ns.Prefix(resource) + n.where
	if n.change != nil {
		n.change(f, ns.Prefix(resource))
	}
	if n.where == "agenda" {
		f.Where = ns.Agenda(record.Partition(resource))
	}
	return f
}

// notices has the notice of each kind.
var notices = map[Kind]notice{
	Counter: {where: "counts", count: true, differs: said{
		"Redis counts %[3]s held of slot %[1]s of %[2]s; its live holds take %[4]s.",
		"Set the counter to what the records of the live holds take.",
	}},
	Users: {where: "users", count: true, personal: true, differs: said{
		"Redis counts %[3]s live holds of user %[1]s on %[2]s; there are %[4]s.",
		"Set the number to the count of the user's live holds.",
	}},
	Due: {where: "due", values: momentIn, missing: said{
		"Hold %[1]s of %[2]s is held until %[4]s and is missing from the deadline index: it would never expire.",
		"Add it to the index.",
	}, surplus: said{
		"Hold %[1]s of %[2]s is in the deadline index at %[3]s and is not held.",
		"Remove it from the index.",
	}, differs: said{
		"Hold %[1]s of %[2]s is held until %[4]s; the deadline index has %[3]s.",
		"Correct the index.",
	}},
	Departing: {where: "departing", values: momentIn, missing: said{
		"Hold %[1]s of %[2]s has expired, and Redis has it neither among the expiries to announce nor among the " +
			"announced ones.",
		"Announce its hold.expired. If that was published before, consumers drop the repeat by its id.",
	}, surplus: said{
		"Hold %[1]s of %[2]s is scheduled to be announced as expired at %[3]s, and it has not expired or was announced " +
			"before.",
		"Remove it from the list.",
	}, differs: said{
		"Hold %[1]s of %[2]s has expired, and is scheduled to be announced at %[3]s only.",
		"Announce its hold.expired now.",
	}},
	Tombstone: {where: "tombstones", values: momentIn, missing: said{
		"Hold %[1]s of %[2]s has ended, and its record is not scheduled to be deleted.",
		"Schedule the record for deletion after the time for which ended holds are remembered.",
	}, differs: said{
		"Hold %[1]s of %[2]s has not ended or is unknown, and its record is scheduled to be deleted at %[3]s.",
		"Remove it from the list, so that a live hold is not deleted.",
	}},
	Index: {where: "users", missing: said{
		"Hold %[1]s of %[2]s is live and missing from the index of its user: the user could hold the same slots twice.",
		"Add it to the index.",
	}, differs: said{
		"Hold %[1]s of %[2]s is live, and the index of its user names %[3]s instead.",
		"Correct the index. If the other hold is live and on the same slots, release one of the two by hand.",
	}},
	HoldKey: {where: "hold:", values: momentIn, missing: said{
		"Hold %[1]s of %[2]s is held until %[4]s, and its key is missing: no notification will report its expiry.",
		"Write the key again.",
	}, differs: said{
		"Hold %[1]s of %[2]s is held until %[4]s, and the expiry of its key is %[3]s.",
		"Write the key again.",
	}, change: func(f *Finding, _ string) { f.Where += f.Item }},
	RequestAnswer: {where: "request:...", manual: true, differs: said{
		"Hold %[1]s of %[2]s is live, and Redis does not remember it as the answer to its request (found %[3]s): a " +
			"repeat of the request would be decided again.",
		"Run worker rebuild, which restores the answer from the outbound stream. " + notSafe,
	}},
	AnswerCorrupt: {manual: true, values: strings.Clone, differs: said{
		"The key %[1]s of %[2]s (%[3]s) is no answer that a worker writes: its event cannot be answered again.",
		"Run worker rebuild, which restores all answers from the outbound stream. " + notSafe,
	}, change: func(f *Finding, _ string) { f.Where += f.Item }},
	RecordCorrupt: {where: "records", manual: true, values: strings.Clone, differs: said{
		"The record of hold %[1]s of %[2]s (%[3]s) is none that a worker writes. Which slots it takes is unknown, " +
			"so the counters of %[2]s cannot be checked.",
		"Run worker rebuild, which restores all records from the outbound stream and Postgres. " + notSafe,
	}},
	ClaimStuck: {where: "records", manual: true, values: momentIn, differs: said{
		"Hold %[1]s of %[2]s is claimed since %[3]s by a payment without an answer: the payment waits for a server, " +
			"or its event is lost.",
		"When all servers are up, run worker audit: if the event is lost, it names the payment and the command that " +
			"publishes it. " + notSafe,
	}, change: func(f *Finding, _ string) { f.Expected = "an answer" }},
	Agenda: {where: "agenda", values: momentIn, missing: said{
		"Resource %[2]s has work due at %[4]s and is missing from the agenda: the sweep skips it.",
		"Add the resource to the agenda.",
	}, surplus: said{
		"Resource %[2]s has no work due, and it is on the agenda at %[3]s.",
		"Remove the resource from the agenda.",
	}, differs: said{
		"Resource %[2]s has work due at %[4]s, and the agenda has %[3]s: the sweep comes too late.",
		"Add the resource to the agenda.",
	}},
	Rev: {where: "rev", differs: said{
		"The revision of %[2]s is not a number: no event of the resource can be decided.",
		"Reset it to a number that no worker has read before.",
	}},
	WrongType: {differs: said{
		"The key %[1]s of %[2]s is a %[3]s and must be a %[4]s: no script can use it.",
		"Delete the key and write it again from the records.",
	}, change: changeWrongType},
	Residue: {differs: said{"The key %[1]s of %[2]s is left over: ", "Delete it."}, change: changeResidue},
}

func changeWrongType(f *Finding, prefix string) {
	f.Where = prefix + f.difference.name
	if f.difference.name == "records" {
		f.Remedy, f.Automatic = "All holds of the resource are lost with it: run worker rebuild, unless a running "+
			"worker has rebuilt Redis by now. "+notSafe, false
	}
}

func changeResidue(f *Finding, prefix string) {
	f.Where, f.Expected = prefix+f.Item, "nothing"
	if field, isIndex := strings.CutPrefix(f.difference.name, "index:"); isIndex {
		f.Where, f.Item, f.personal = prefix+"users", quoted(field), true
		f.Text = fmt.Sprintf("The entry %s of the index of %s is left over: ", f.Item, f.Resource)
	}
	f.Text += f.difference.found + "."
	if strings.HasPrefix(f.difference.name, "request:") || strings.HasPrefix(f.difference.name, "extension:") {
		f.Remedy = "Set its expiry to the time for which answers are remembered."
	}
}

// counted formats a number in a reply of Redis for people. "-" is 0.
func counted(text string) string {
	if text == "-" {
		return "0"
	}
	return text
}
