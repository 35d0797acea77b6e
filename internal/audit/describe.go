package audit

import (
	"fmt"
	"strings"

	"holdfast/internal/record"
)

// notSafe ends the remedy of a finding that Repair does not handle.
const notSafe = "This is not done automatically."

// described is a finding about Redis while it is being written.
type described struct {
	*Finding
	difference
	prefix string // of the resource's keys
}

func (d *described) setText(format string, args ...any) { d.Text = fmt.Sprintf(format, args...) }

// describe turns a difference in Redis into a finding.
func (ns keyspace) describe(resource string, found difference) *Finding {
	d := &described{
		Finding: &Finding{
			Kind: Kind(found.what), Resource: resource, Item: quoted(found.name), Found: quoted(found.found),
			Expected:  quoted(found.expected),
			Automatic: true, difference: found,
		},
		difference: found, prefix: ns.Prefix(resource),
	}
	if apply, known := descriptions[d.Kind]; known {
		apply(d)
	}
	if d.Where == "agenda" {
		d.Where = ns.Agenda(record.Partition(resource))
	} else {
		d.Where = d.prefix + d.Where
	}
	return d.Finding
}

// descriptions write the finding of each kind. They set Where to what follows the prefix of the
// resource's keys.
var descriptions = map[Kind]func(d *described){
	Counter: func(d *described) {
		d.Where = "counts"
		d.setText("Redis counts %s held of slot %s of %s; its live holds take %s.", counted(d.Found), d.Item,
			d.Resource, counted(d.Expected))
		d.Remedy = "Set the counter to what the records of the live holds take."
	},
	Users: func(d *described) {
		d.Where, d.personal = "users", true
		d.setText("Redis counts %s live holds of user %s on %s; there are %s.", counted(d.Found), d.Item, d.Resource,
			counted(d.Expected))
		d.Remedy = "Set the number to the count of the user's live holds."
	},
	Due:       describeDue,
	Departing: describeDeparting,
	Tombstone: describeTombstone,
	Index: func(d *described) {
		d.Where = "users"
		if d.found == "-" {
			d.setText("Hold %s of %s is live and missing from the index of its user: the user could hold the same "+
				"slots twice.", d.Item, d.Resource)
			d.Remedy = "Add it to the index."
			return
		}
		d.setText("Hold %s of %s is live, and the index of its user names %s instead.", d.Item, d.Resource, d.Found)
		d.Remedy = "Correct the index. If the other hold is live and on the same slots, release one of the two by hand."
	},
	HoldKey: func(d *described) {
		d.Where = "hold:" + d.Item
		d.Found, d.Expected = momentIn(d.found), momentIn(d.expected)
		if d.found == "-" {
			d.setText("Hold %s of %s is held until %s, and its key is missing: no notification will report its expiry.",
				d.Item, d.Resource, d.Expected)
		} else {
			d.setText("Hold %s of %s is held until %s, and the expiry of its key is %s.", d.Item, d.Resource,
				d.Expected, d.Found)
		}
		d.Remedy = "Write the key again."
	},
	RequestAnswer: func(d *described) {
		d.Where, d.Automatic = "request:...", false
		d.setText("Hold %s of %s is live, and Redis does not remember it as the answer to its request (found %s): a "+
			"repeat of the request would be decided again.", d.Item, d.Resource, d.Found)
		d.Remedy = "Only its publisher knows the request: make sure that it does not publish the same request key " +
			"again."
	},
	RecordCorrupt: func(d *described) {
		d.Where, d.Automatic = "records", false
		d.setText("The record of hold %s of %s cannot be read: it is %s of other text. Which slots it takes is "+
			"unknown, so the counters of %s cannot be checked.", d.Item, d.Resource, d.found, d.Resource)
		d.Found = d.found
		d.Remedy = fmt.Sprintf("Restore the record from hold.created of this hold (record/record.go describes its "+
			"words), or, when the hold has ended, HDEL %srecords %s. ", d.prefix, d.Item) + notSafe
	},
	ClaimStuck: func(d *described) {
		d.Where, d.Automatic = "records", false
		d.Found, d.Expected = momentIn(d.found), "an answer"
		d.setText("Hold %s of %s is claimed since %s by a payment without an answer: the payment waits for a server, "+
			"or its event is lost.", d.Item, d.Resource, d.Found)
		d.Remedy = "When all servers are up, run worker audit: if the event is lost, it names the payment and the " +
			"command that publishes it. " + notSafe
	},
	Agenda: func(d *described) {
		d.Where = "agenda"
		d.Found, d.Expected = momentIn(d.found), momentIn(d.expected)
		d.Remedy = "Add the resource to the agenda."
		switch {
		case d.found == "-":
			d.setText("Resource %s has work due at %s and is missing from the agenda: the sweep skips it.", d.Resource,
				d.Expected)
		case d.expected == "-":
			d.setText("Resource %s has no work due, and it is on the agenda at %s.", d.Resource, d.Found)
			d.Remedy = "Remove the resource from the agenda."
		default:
			d.setText("Resource %s has work due at %s, and the agenda has %s: the sweep comes too late.", d.Resource,
				d.Expected, d.Found)
		}
	},
	Rev: func(d *described) {
		d.Where = "rev"
		d.setText("The revision of %s is not a number: no event of the resource can be decided.", d.Resource)
		d.Remedy = "Reset it to a number that no worker has read before."
	},
	WrongType: func(d *described) {
		d.Where = d.name
		d.setText("The key %s of %s is a %s and must be a %s: no script can use it.", d.name, d.Resource, d.Found,
			d.Expected)
		d.Remedy = "Delete the key and write it again from the records."
		if d.name == "records" {
			d.Remedy, d.Automatic = "All holds of the resource are lost with it: run worker rebuild, unless a "+
				"running worker has rebuilt Redis by now. "+notSafe, false
		}
	},
	Residue: func(d *described) {
		d.Where, d.Expected = d.Item, "nothing"
		d.setText("The key %s of %s is left over: %s.", d.Item, d.Resource, d.found)
		d.Remedy = "Delete it."
		if field, isIndex := strings.CutPrefix(d.name, "index:"); isIndex {
			d.Where, d.Item, d.personal = "users", quoted(field), true
			d.setText("The entry %s of the index of %s is left over: %s.", d.Item, d.Resource, d.found)
		}
		if strings.HasPrefix(d.name, "request:") || strings.HasPrefix(d.name, "extension:") {
			d.Remedy = "Set its expiry to the time for which answers are remembered."
		}
	},
}

func describeDue(d *described) {
	d.Where = "due"
	d.Found, d.Expected = momentIn(d.found), momentIn(d.expected)
	switch {
	case d.found == "-":
		d.setText("Hold %s of %s is held until %s and is missing from the deadline index: it would never expire.",
			d.Item, d.Resource, d.Expected)
		d.Remedy = "Add it to the index."
	case d.expected == "-":
		d.setText("Hold %s of %s is in the deadline index at %s and is not held.", d.Item, d.Resource, d.Found)
		d.Remedy = "Remove it from the index."
	default:
		d.setText("Hold %s of %s is held until %s; the deadline index has %s.", d.Item, d.Resource, d.Expected, d.Found)
		d.Remedy = "Correct the index."
	}
}

func describeDeparting(d *described) {
	d.Where = "departing"
	if d.found == "-" {
		d.setText("Hold %s of %s has expired, and Redis has it neither among the expiries to announce nor among the "+
			"announced ones.", d.Item, d.Resource)
		d.Remedy = "Announce its hold.expired. If that was published before, consumers drop the repeat by its id."
		return
	}
	d.Found = momentIn(d.found)
	d.setText("Hold %s of %s is scheduled to be announced as expired at %s, and it has not expired or was announced "+
		"before.", d.Item, d.Resource, d.Found)
	d.Remedy = "Remove it from the list."
}

func describeTombstone(d *described) {
	d.Where = "tombstones"
	if d.found == "-" {
		d.setText("Hold %s of %s has ended, and its record is not scheduled to be deleted.", d.Item, d.Resource)
		d.Remedy = "Schedule the record for deletion after the time for which ended holds are remembered."
		return
	}
	d.Found = momentIn(d.found)
	d.setText("Hold %s of %s has not ended or is unknown, and its record is scheduled to be deleted at %s.", d.Item,
		d.Resource, d.Found)
	d.Remedy = "Remove it from the list, so that a live hold is not deleted."
}

// counted formats a number in a reply of Redis for people. "-" is 0.
func counted(text string) string {
	if text == "-" {
		return "0"
	}
	return text
}
