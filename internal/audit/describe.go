package audit

import (
	"fmt"
	"strings"

	"holdfast/internal/record"
)

// notSafe ends a remedy that is left to people.
const notSafe = "This is not done automatically."

// described is a difference in Redis on its way to be a finding.
type described struct {
	*Finding
	difference
	prefix string // of the resource's keys
}

func (d *described) setText(format string, args ...any) { d.Text = fmt.Sprintf(format, args...) }

// describe returns what a difference in Redis is, and what is to be done about it.
func (ns keyspace) describe(resource string, found difference) *Finding {
	d := &described{
		Finding: &Finding{
			Kind: Kind(found.what), Resource: resource, Item: quoted(found.name), Found: quoted(found.found), Expected: quoted(found.expected),
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

// descriptions tell each kind of difference. Where is what follows the prefix of the resource.
var descriptions = map[Kind]func(d *described){
	Counter: func(d *described) {
		d.Where = "counts"
		d.setText("Redis counts %s held of slot %s of %s; its live holds take %s.", counted(d.Found), d.Item, d.Resource, counted(d.Expected))
		d.Remedy = "Set the counter to what the records of the live holds say."
	},
	Users: func(d *described) {
		d.Where, d.personal = "users", true
		d.setText("Redis counts %s live holds of user %s on %s; there are %s.", counted(d.Found), d.Item, d.Resource, counted(d.Expected))
		d.Remedy = "Set the number to what the records of the live holds say."
	},
	Due:       describeDue,
	Departing: describeDeparting,
	Tombstone: describeTombstone,
	Index: func(d *described) {
		d.Where = "users"
		if d.found == "-" {
			d.setText("Hold %s of %s is live and not in the index of its user: the same user could hold the same slots twice.", d.Item, d.Resource)
			d.Remedy = "Put it back into the index."
			return
		}
		d.setText("Hold %s of %s is live, and the index of its user names %s in its place.", d.Item, d.Resource, d.Found)
		d.Remedy = "Correct the index, unless the other hold is live and on the same slots: then one of them is to be cancelled by hand."
	},
	HoldKey: func(d *described) {
		d.Where = "hold:" + d.Item
		d.Found, d.Expected = momentIn(d.found), momentIn(d.expected)
		if d.found == "-" {
			d.setText("Hold %s of %s is held until %s, and its key is missing: no notification will tell that it lapses.", d.Item, d.Resource, d.Expected)
		} else {
			d.setText("Hold %s of %s is held until %s, and its key lasts until %s.", d.Item, d.Resource, d.Expected, d.Found)
		}
		d.Remedy = "Write the key anew."
	},
	RequestAnswer: func(d *described) {
		d.Where, d.Automatic = "request:...", false
		d.setText("Hold %s of %s is live, and Redis does not remember it as the answer to its request (found %s): if the request is repeated, it is decided again.", d.Item, d.Resource, d.Found)
		d.Remedy = "What the request was is only known to its publisher: see that it is not sent again with the same request key."
	},
	RecordCorrupt: func(d *described) {
		d.Where, d.Automatic = "records", false
		d.setText("The record of hold %s of %s cannot be read: it is %s that are none. What it takes is not known, so the counters of %s cannot be judged.", d.Item, d.Resource, d.found, d.Resource)
		d.Found = d.found
		d.Remedy = fmt.Sprintf("Restore the record from hold.created of this hold (its words are told in record/record.go), or, when it has ended, HDEL %srecords %s. ", d.prefix, d.Item) + notSafe
	},
	ClaimStuck: func(d *described) {
		d.Where, d.Automatic = "records", false
		d.Found, d.Expected = momentIn(d.found), "an answer"
		d.setText("Hold %s of %s is claimed by a payment since %s, which is not answered: it waits through an outage, or its event is gone.", d.Item, d.Resource, d.Found)
		d.Remedy = "When no server is down, run worker audit: it names the payment if its event is gone, and what to publish. " + notSafe
	},
	Agenda: func(d *described) {
		d.Where = "agenda"
		d.Found, d.Expected = momentIn(d.found), momentIn(d.expected)
		d.Remedy = "Put it on the agenda."
		switch {
		case d.found == "-":
			d.setText("Something is to be done about %s at %s, and it is not on the agenda: the sweep does not look at it.", d.Resource, d.Expected)
		case d.expected == "-":
			d.setText("Nothing is to be done about %s, and it is on the agenda with %s.", d.Resource, d.Found)
			d.Remedy = "Take it off the agenda."
		default:
			d.setText("Something is to be done about %s at %s, and the agenda says %s: the sweep looks too late.", d.Resource, d.Expected, d.Found)
		}
	},
	Rev: func(d *described) {
		d.Where = "rev"
		d.setText("What counts the changes of %s is no number: nothing can be decided.", d.Resource)
		d.Remedy = "Begin it anew with a number that nobody has read before."
	},
	WrongType: func(d *described) {
		d.Where = d.name
		d.setText("The key %s of %s is a %s, and should be a %s: no script can work with it.", d.name, d.Resource, d.Found, d.Expected)
		d.Remedy = "Delete it and make it anew from the records."
		if d.name == "records" {
			d.Remedy, d.Automatic = "All holds of the resource are lost with it: worker rebuild, unless a worker that runs has filled Redis again by now. "+notSafe, false
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
			d.Remedy = "Let it end after the time for which answers are remembered."
		}
	},
}

func describeDue(d *described) {
	d.Where = "due"
	d.Found, d.Expected = momentIn(d.found), momentIn(d.expected)
	switch {
	case d.found == "-":
		d.setText("Hold %s of %s is held until %s and is not in the deadline index: it would never lapse.", d.Item, d.Resource, d.Expected)
		d.Remedy = "Put it back into the index."
	case d.expected == "-":
		d.setText("Hold %s of %s is in the deadline index with %s and is not held.", d.Item, d.Resource, d.Found)
		d.Remedy = "Take it out of the index."
	default:
		d.setText("Hold %s of %s is held until %s; the deadline index says %s.", d.Item, d.Resource, d.Expected, d.Found)
		d.Remedy = "Correct the index."
	}
}

func describeDeparting(d *described) {
	d.Where = "departing"
	if d.found == "-" {
		d.setText("Hold %s of %s has lapsed, and Redis neither has its hold.expired to be announced nor remembers that it was.", d.Item, d.Resource)
		d.Remedy = "Have it announced. If it was, consumers drop the repeat by its id."
		return
	}
	d.Found = momentIn(d.found)
	d.setText("Hold %s of %s is to be announced as expired at %s, and it has not lapsed or was announced.", d.Item, d.Resource, d.Found)
	d.Remedy = "Take it off the list."
}

func describeTombstone(d *described) {
	d.Where = "tombstones"
	if d.found == "-" {
		d.setText("Hold %s of %s has ended, and nothing will ever drop its record.", d.Item, d.Resource)
		d.Remedy = "Have the record dropped after the time for which ended holds are remembered."
		return
	}
	d.Found = momentIn(d.found)
	d.setText("Hold %s of %s has not ended or is not known, and what there is of it is to be dropped at %s.", d.Item, d.Resource, d.Found)
	d.Remedy = "Take it off the list, so that a live hold is not forgotten."
}

// counted is a number for people.
func counted(text string) string {
	if text == "-" {
		return "0"
	}
	return text
}
