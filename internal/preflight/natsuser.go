package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/holds"
)

// userInfo is the subject of requests for a user's own permissions.
const userInfo = "$SYS.REQ.USER.INFO"

// natsUser is the answer to a request on userInfo.
type natsUser struct {
	Server struct {
		Time time.Time `json:"time"`
	} `json:"server"`
	Data *struct {
		User        string `json:"user"`
		Account     string `json:"account"`
		Permissions *struct {
			Publish   permission `json:"publish"`
			Subscribe permission `json:"subscribe"`
			Responses *struct {
				Max int `json:"max"` // answers to each message, negative for any number
			} `json:"responses"` // it may answer what it receives
		} `json:"permissions"`
	} `json:"data"`
}

// user requests the permissions of the connection's user. When Data.Permissions is nil, none are
// set and the user may do everything.
func (l *natsProbe) user(ctx context.Context) (w natsUser, err error) {
	answer, err := request(ctx, l, func(ctx context.Context) (*nats.Msg, error) {
		ctx, cancel := context.WithTimeout(ctx, within/5)
		defer cancel()
		return l.nc.RequestWithContext(ctx, userInfo, nil)
	})
	if err == nil {
		err = json.Unmarshal(answer.Data, &w)
	}
	if err == nil && (w.Data == nil || w.Server.Time.IsZero()) {
		err = errors.New("unexpected answer on " + userInfo)
	}
	return w, err
}

// permission has the subjects that are allowed, all when Allow is empty, and those that are denied.
type permission struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

func (p permission) permits(subject string) bool {
	matches := func(pattern string) bool { return events.SubjectsOverlap(pattern, subject) }
	return (len(p.Allow) == 0 || slices.ContainsFunc(p.Allow, matches)) && !slices.ContainsFunc(p.Deny, matches)
}

// permitted returns what the permitted ones of the powers mean.
func (p permission) permitted(powers []power) (may []string) {
	for _, one := range powers {
		if p.permits(one.subject) {
			may = append(may, one.means)
		}
	}
	return may
}

// jsAPI begins the subjects of requests to JetStream. readerName stands for the name of any ordered consumer.
const (
	jsAPI      = "$JS.API."
	readerName = "preflight"
)

// natsAnswering checks what each event needs: to be fetched, answered and acknowledged. It checks one outcome of each kind.
func (r *report) natsAnswering(w natsUser, err error, ns events.Namespace) {
	var needed []string
	// An ack is an answer, but one that follows others: a worker has requested more time for an event that takes long.
	acks := err == nil && w.Data.Permissions != nil && (w.Data.Permissions.Responses == nil || w.Data.Permissions.Responses.Max >= 0)
	for _, consumer := range ns.Consumers() {
		of := ns.InStream() + "." + consumer.Durable
		needed = append(needed, jsAPI+"CONSUMER.MSG.NEXT."+of)
		if acks {
			needed = append(needed, "$JS.ACK."+of+".1.1.1.1.0")
		}
	}
	for _, event := range []string{holds.EventHoldCreated, holds.EventReservationCancelled, holds.EventInventoryUpdated,
		holds.EventBookingCancelled} {
		needed = append(needed, ns.Out(event, "preflight"))
	}
	for _, reason := range events.DeadLetterReasons() {
		needed = append(needed, ns.DLQ(reason))
	}
	r.natsAllowed(NATSAnswering, Fail, w, err, needed, "no event is answered, or none of those that need it: they wait",
		"the user may fetch events and answer them")
}

// natsReading checks what a rebuild of Redis needs.
func (r *report) natsReading(w natsUser, err error, ns events.Namespace) {
	const create = jsAPI + "CONSUMER.CREATE."
	needed := []string{
		create + ns.OutStream() + "." + readerName, create + ns.DLQStream() + "." + readerName,
		create + ns.InStream() + "." + readerName + "." + ns.In(events.PaymentConfirmed, "preflight"),
	}
	for _, stream := range []string{ns.OutStream(), ns.InStream(), ns.DLQStream()} {
		needed = append(needed, jsAPI+"STREAM.INFO."+stream, jsAPI+"CONSUMER.INFO."+stream+"."+readerName,
			jsAPI+"CONSUMER.MSG.NEXT."+stream+"."+readerName)
	}
	r.natsAllowed(NATSReading, Fail, w, err, needed,
		"after a loss of data Redis cannot be rebuilt, and no event is processed any more",
		"the user may read the streams for a rebuild of Redis")
}

// natsTrimming checks what the removal of inbound events needs.
func (r *report) natsTrimming(w natsUser, err error, ns events.Namespace) {
	in := ns.InStream()
	needed := []string{jsAPI + "CONSUMER.NAMES." + in, jsAPI + "STREAM.PURGE." + in, jsAPI + "STREAM.MSG.DELETE." + in}
	needed = slices.Concat(needed, readerRequests(in), readerRequests(ns.DLQStream()))
	r.natsAllowed(NATSTrimming, Warn, w, err, needed,
		"no inbound event is removed, and the stream grows until it is full",
		"the user may remove answered inbound events")
}

// readerRequests are the subjects of the requests by which a temporary consumer reads a stream.
func readerRequests(stream string) []string {
	reader := stream + "." + readerName
	return []string{jsAPI + "STREAM.INFO." + stream, jsAPI + "CONSUMER.CREATE." + reader, jsAPI + "CONSUMER.INFO." + reader,
		jsAPI + "CONSUMER.MSG.NEXT." + reader, jsAPI + "CONSUMER.DELETE." + reader}
}

// consoleAct is the value of HOLDFAST_CONSOLE with which the console acts as an operator.
const consoleAct = "act"

// power is what a user may do with a permission for a subject.
type power struct{ means, subject string }

// actingPowers are what a worker needs only if its console acts.
func actingPowers(ns events.Namespace) []power {
	return []power{
		{"publish payments", ns.In(events.PaymentConfirmed, "preflight")},
		{"set capacity", ns.In(events.InventorySet, "preflight")},
		{"record runs", ns.Run("preflight")},
		{"delete dead letters", jsAPI + "STREAM.MSG.DELETE." + ns.DLQStream()},
	}
}

// natsConsole checks what the console needs besides what a worker without it needs.
func (r *report) natsConsole(w natsUser, err error, t Target) {
	ns := events.Namespace(t.Namespace)
	needed := append(readerRequests(ns.RunsStream()), jsAPI+"STREAM.MSG.GET."+ns.RunsStream())
	switch t.Console {
	case "", "off":
		r.skipAll("the console is off", NATSConsole)
		return
	case consoleAct:
		for _, p := range actingPowers(ns) {
			needed = append(needed, p.subject)
		}
	}
	r.natsAllowed(NATSConsole, Warn, w, err, needed, "pages and actions of the console fail",
		"the user may do what the console needs")
}

// natsAllowed adds a check whether the user may publish on subjects, by the permissions that the server reports. It
// tries none of them. bad is the status without a permission.
func (r *report) natsAllowed(name string, bad Status, w natsUser, err error, subjects []string, why, found string) {
	if err != nil {
		r.unknown(name, "the permissions of the user are unknown", "see "+NATSPrivileges)
		return
	}
	var lacks []string
	for _, subject := range subjects {
		if w.Data.Permissions != nil && !w.Data.Permissions.Publish.permits(subject) {
			lacks = append(lacks, subject)
		}
	}
	if len(lacks) > 0 {
		r.add(name, bad, "user "+w.Data.User+" may not publish on "+strings.Join(lacks, ", "), why,
			"allow it what deployments/nats/accounts.conf says of holdfast_worker")
		return
	}
	r.ok(name, found)
}

// natsPrivileges checks the permissions that the server reports for the user; it tries none of
// them.
func (r *report) natsPrivileges(w natsUser, err error, t Target) {
	const (
		why = "a mistake, or an intruder with the worker's login, could publish events of others or delete stored messages"
		fix = "use a user like holdfast_worker in deployments/nats/accounts.conf"
	)
	if err != nil {
		found := err.Error()
		if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded) {
			found = "no answer on " + userInfo
		}
		r.unknown(NATSPrivileges, found, "allow the user to publish on "+userInfo+", and give NATS a system account")
		return
	}
	user := "user " + w.Data.User
	if w.Data.User == "" {
		user = "every client"
	}
	if w.Data.Permissions == nil {
		r.warn(NATSPrivileges, fmt.Sprintf("%s may publish and subscribe to everything in account %s", user, w.Data.Account),
			why, fix)
		return
	}
	ns := events.Namespace(t.Namespace)
	publishes := []power{
		{"purge " + ns.OutStream(), jsAPI + "STREAM.PURGE." + ns.OutStream()},
		{"delete " + ns.InStream(), jsAPI + "STREAM.DELETE." + ns.InStream()},
		{"delete outcomes", jsAPI + "STREAM.MSG.DELETE." + ns.OutStream()},
		{"publish on other subjects", "not-" + t.Namespace + ".preflight"},
	}
	if t.Console != consoleAct {
		publishes = append(publishes, actingPowers(ns)...)
	}
	may := append(w.Data.Permissions.Publish.permitted(publishes), w.Data.Permissions.Subscribe.permitted([]power{
		{"subscribe to inboxes of others", "_INBOX.preflight.preflight"},
		{"subscribe to other subjects", "not-" + t.Namespace + ".preflight"},
	})...)
	if len(may) > 0 {
		r.warn(NATSPrivileges, user+" may "+strings.Join(may, ", "), why, fix)
		return
	}
	r.ok(NATSPrivileges, user+" has none of the checked permissions that a worker does not need")
}
