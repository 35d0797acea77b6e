package queries

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/members"
)

// parameters are those of a query: the members of its JSON, or of the query of a URL, each as a string.
type parameters struct{ *members.Reader }

// newParameters returns parameters, of which err is the first error unless it is nil. It refuses those that are not
// known: a misspelt one must not be ignored.
func newParameters(all members.Object, err error, known []string) parameters {
	p := parameters{members.NewReader(all)}
	p.Keep(err)
	all.Sort()
	for _, given := range all {
		if !slices.Contains(known, given.Name) {
			p.Fail(given.Name, "unknown parameter")
		}
	}
	return p
}

// parametersOf parses a query in JSON.
func parametersOf(body []byte, known ...string) parameters {
	all, err := members.Parse("query", body)
	return newParameters(all, err, known)
}

// parameterSlot is the only parameter of a URL that may be repeated. Its values are the member slots.
const parameterSlot = "slot"

// parametersOfURL parses the query of a URL.
func parametersOfURL(rawQuery string, known ...string) parameters {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		err = members.Errorf("the query is not percent-encoded correctly")
	}
	var all members.Object
	for name, values := range query {
		var value any = values[0]
		switch {
		case name == parameterSlot:
			value = values
		case len(values) > 1:
			err = cmp.Or(err, members.Errorf("%s: given more than once", name))
		}
		encoded, invalid := json.Marshal(value)
		if invalid != nil {
			err = cmp.Or(err, members.Errorf("%s: %v", name, invalid))
		}
		all = append(all, members.Member{Name: name, Value: encoded})
	}
	p := newParameters(all, err, known)
	for i := range all {
		if all[i].Name == parameterSlot {
			all[i].Name = "slots"
		}
	}
	return p
}

// limit reads the number of entries of a page, written as a number or, as in a URL, as a string.
func (p parameters) limit() int {
	value, given := p.Get("limit")
	if !given {
		return pageDefault
	}
	n, err := strconv.Atoi(strings.Trim(string(value), `"`))
	if err != nil || n < 1 || n > PageMax {
		p.Fail("limit", fmt.Sprintf("must be a whole number from 1 to %d", PageMax))
	}
	return n
}

// reveal reads whether private data is asked for: a boolean, written as one or, as in a URL, as a
// string.
func (p parameters) reveal() bool {
	value, given := p.Get("reveal")
	text := strings.Trim(string(value), `"`)
	if given && text != "true" && text != "false" {
		p.Fail("reveal", "must be true or false")
	}
	return text == "true"
}

// who reads who asks, as the client says.
func (p parameters) who() string {
	if !p.Has("who") {
		return ""
	}
	return events.OneLine(p.Text("who"))
}

// availability reads resource_id, and either check_in with check_out, or slots, or neither. The values
// have the same form as in an event.
func (p parameters) availability() (resource string, selection holds.SlotSelection, err error) {
	resource, selection = p.Resource(), p.SlotSelection(holds.InventorySlotsMax)
	return resource, selection, p.Err()
}

// ParseQuery parses the query of a URL: resource_id, and either check_in with check_out, or slot
// (repeated), or neither.
func ParseQuery(rawQuery string) (resource string, selection holds.SlotSelection, err error) {
	return parametersOfURL(rawQuery, "resource_id", "check_in", "check_out", parameterSlot).availability()
}

// HoldsQuery asks for live holds.
type HoldsQuery struct {
	ResourceID string      `json:"resource_id"`
	UserID     string      `json:"user_id,omitzero"` // "" for all users
	State      holds.State `json:"state,omitzero"`   // holds.Held, holds.Confirming, or "" for both
	Limit      int         `json:"limit"`            // 1 to PageMax
	After      string      `json:"after,omitzero"`   // HoldsPage.Next or the id of a hold; "" for the first page
	Reveal     bool        `json:"reveal"`           // user ids and metadata
}

var holdsParameters = []string{"resource_id", "user_id", "state", "limit", "after", "reveal"}

// ParseHoldsQuery parses the query of a URL: resource_id, user_id, state, limit, after, reveal.
func ParseHoldsQuery(rawQuery string) (HoldsQuery, error) {
	return parametersOfURL(rawQuery, holdsParameters...).holdsQuery()
}

func (p parameters) holdsQuery() (HoldsQuery, error) {
	q := HoldsQuery{ResourceID: p.Resource(), Limit: p.limit(), Reveal: p.reveal()}
	if p.Has("user_id") {
		q.UserID = p.Name("user_id")
	}
	if p.Has("state") {
		q.State = holds.State(p.Text("state"))
		if q.State != holds.Held && q.State != holds.Confirming {
			p.Fail("state", "must be held or confirming: no other hold is live")
		}
	}
	if p.Has("after") {
		q.After = p.Text("after")
	}
	return q, p.Err()
}

// ResourcesQuery asks for the resources that have inventory.
type ResourcesQuery struct {
	Prefix string `json:"prefix"`         // of their ids
	Limit  int    `json:"limit"`          // 1 to PageMax
	After  string `json:"after,omitzero"` // ResourcesPage.Next; "" for the first page
}

var resourcesParameters = []string{"prefix", "limit", "after"}

// ParseResourcesQuery parses the query of a URL: prefix, limit, after.
func ParseResourcesQuery(rawQuery string) (ResourcesQuery, error) {
	return parametersOfURL(rawQuery, resourcesParameters...).resourcesQuery()
}

func (p parameters) resourcesQuery() (ResourcesQuery, error) {
	q := ResourcesQuery{Limit: p.limit()}
	if p.Has("prefix") && p.Text("prefix") != "" {
		q.Prefix = p.Matching("prefix", holds.ResourcePattern, holds.ValidResource)
	}
	if p.Has("after") {
		q.After = p.Matching("after", holds.ResourcePattern, holds.ValidResource)
	}
	return q, p.Err()
}

// DeadLettersQuery asks for dead letters.
type DeadLettersQuery struct {
	Reason string // "" for all
	Limit  int    // 1 to PageMax
	After  uint64 // a sequence in the stream of dead letters; 0 for the first page
}

// ParseDeadLettersQuery parses the query of a URL: reason, limit, after.
func ParseDeadLettersQuery(rawQuery string) (DeadLettersQuery, error) {
	p := parametersOfURL(rawQuery, "reason", "limit", "after")
	q, reasons := DeadLettersQuery{Limit: p.limit()}, events.DeadLetterReasons()
	if p.Has("reason") {
		if q.Reason = p.Text("reason"); !slices.Contains(reasons, q.Reason) {
			p.Fail("reason", "must be one of "+strings.Join(reasons, ", "))
		}
	}
	if p.Has("after") {
		after, err := strconv.ParseUint(p.Text("after"), 10, 64)
		if q.After = after; err != nil {
			p.Fail("after", "must be a sequence number")
		}
	}
	return q, p.Err()
}

// ParseNoQuery refuses every parameter.
func ParseNoQuery(rawQuery string) error {
	return parametersOfURL(rawQuery).Err()
}
