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

// readerName stands for the name of any ordered consumer.
const readerName = "preflight"

// natsReading checks what a rebuild of Redis needs.
func (r *report) natsReading(w natsUser, err error, ns events.Namespace) {
	requests := []string{"CONSUMER.CREATE." + ns.InStream() + "." + readerName + "." + ns.In(events.PaymentConfirmed, "preflight")}
	for _, stream := range []string{ns.OutStream(), ns.InStream(), ns.DLQStream()} {
		requests = append(requests, "STREAM.INFO."+stream, "CONSUMER.INFO."+stream+"."+readerName,
			"CONSUMER.MSG.NEXT."+stream+"."+readerName)
		if stream != ns.InStream() {
			requests = append(requests, "CONSUMER.CREATE."+stream+"."+readerName)
		}
	}
	r.natsAllowed(NATSReading, Fail, w, err, requests,
		"after a loss of data Redis cannot be rebuilt, and no event is processed any more",
		"the user may read the streams for a rebuild of Redis")
}

// natsTrimming checks what the removal of inbound events needs.
func (r *report) natsTrimming(w natsUser, err error, ns events.Namespace) {
	in := ns.InStream()
	requests := []string{"CONSUMER.NAMES." + in, "CONSUMER.INFO." + in + "." + readerName, "STREAM.PURGE." + in, "STREAM.MSG.DELETE." + in}
	for _, stream := range []string{in, ns.DLQStream()} {
		requests = append(requests, "STREAM.INFO."+stream, "CONSUMER.CREATE."+stream+"."+readerName,
			"CONSUMER.MSG.NEXT."+stream+"."+readerName, "CONSUMER.DELETE."+stream+"."+readerName)
	}
	r.natsAllowed(NATSTrimming, Warn, w, err, requests,
		"no inbound event is removed, and the stream grows until it is full",
		"the user may remove answered inbound events")
}

// natsAllowed adds a check whether the user may send requests to the API of JetStream, by the permissions
// that the server reports. It tries none of them. bad is the status without a permission.
func (r *report) natsAllowed(name string, bad Status, w natsUser, err error, requests []string, why, found string) {
	if err != nil {
		r.unknown(name, "the permissions of the user are unknown", "see "+NATSPrivileges)
		return
	}
	var lacks []string
	for _, request := range requests {
		if subject := "$JS.API." + request; w.Data.Permissions != nil && !w.Data.Permissions.Publish.permits(subject) {
			lacks = append(lacks, subject)
		}
	}
	if len(lacks) > 0 {
		r.add(name, bad, "user "+w.Data.User+" may not publish on "+strings.Join(lacks, ", "), why,
			"allow it what holdfast_worker has in deployments/nats/accounts.conf")
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
	var may []string
	for _, act := range []struct {
		subject, means string
		of             permission
	}{
		{"$JS.API.STREAM.PURGE." + ns.OutStream(), "purge " + ns.OutStream(), w.Data.Permissions.Publish},
		{"$JS.API.STREAM.DELETE." + ns.InStream(), "delete " + ns.InStream(), w.Data.Permissions.Publish},
		{"$JS.API.STREAM.MSG.DELETE." + ns.OutStream(), "delete outcomes", w.Data.Permissions.Publish},
		{ns.In(events.PaymentConfirmed, "preflight"), "publish payments", w.Data.Permissions.Publish},
		{"not-" + t.Namespace + ".preflight", "publish on other subjects", w.Data.Permissions.Publish},
		{"_INBOX.preflight.preflight", "subscribe to inboxes of others", w.Data.Permissions.Subscribe},
		{"not-" + t.Namespace + ".preflight", "subscribe to other subjects", w.Data.Permissions.Subscribe},
	} {
		if act.of.permits(act.subject) {
			may = append(may, act.means)
		}
	}
	if len(may) > 0 {
		r.warn(NATSPrivileges, user+" may "+strings.Join(may, ", "), why, fix)
		return
	}
	r.ok(NATSPrivileges, user+" has none of the checked permissions that a worker does not need")
}
