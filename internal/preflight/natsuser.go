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

// userInfo is where every user may ask who it is, if it may publish there.
const userInfo = "$SYS.REQ.USER.INFO"

// natsUser is what a server tells a user of itself and of the user.
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

// user asks. The user has no permissions set, and so all of them, when Data.Permissions is nil.
func (l *natsProbe) user(ctx context.Context) (w natsUser, err error) {
	err = l.request(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, within/5)
		defer cancel()
		answer, err := l.nc.RequestWithContext(ctx, userInfo, nil)
		if err != nil {
			return err
		}
		return json.Unmarshal(answer.Data, &w)
	})
	if err == nil && (w.Data == nil || w.Server.Time.IsZero()) {
		err = errors.New("the answer on " + userInfo + " is not understood")
	}
	return w, err
}

// permission is on which subjects something may be done: on those that are allowed, on all when
// none is named, and not on those that are denied.
type permission struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

func (p permission) permits(subject string) bool {
	matches := func(pattern string) bool { return matches(pattern, subject) }
	return (len(p.Allow) == 0 || slices.ContainsFunc(p.Allow, matches)) && !slices.ContainsFunc(p.Deny, matches)
}

// matches reports whether a subject without wildcards is meant by a pattern.
func matches(pattern, subject string) bool {
	tokens := strings.Split(subject, ".")
	for i, want := range strings.Split(pattern, ".") {
		switch {
		case want == ">":
			return i < len(tokens)
		case i >= len(tokens), want != "*" && want != tokens[i]:
			return false
		}
	}
	return len(strings.Split(pattern, ".")) == len(tokens)
}

// The checks whether the user may read what Redis is filled from when it has lost its data, and remove inbound events.
const (
	natsReading  = "nats.rebuild"
	natsTrimming = "nats.trim"
)

// lacks returns on which subjects of JetStream's API the user may not publish.
func (w natsUser) lacks(requests ...string) (subjects []string) {
	for _, request := range requests {
		if subject := "$JS.API." + request; w.Data.Permissions != nil && !w.Data.Permissions.Publish.permits(subject) {
			subjects = append(subjects, subject)
		}
	}
	return subjects
}

// readerName is a name like that of any consumer that reads in order.
const readerName = "preflight"

// natsReading tries nothing, as natsPrivileges.
func (r *report) natsReading(w natsUser, err error, t Target) {
	ns := events.Namespace(t.Namespace)
	if err != nil {
		r.unknown(natsReading, "what the user may do is not known", "see "+NATSPrivileges)
		return
	}
	lacks := w.lacks(
		"STREAM.INFO."+ns.OutStream(), "STREAM.INFO."+ns.InStream(),
		"CONSUMER.CREATE."+ns.OutStream()+"."+readerName, "CONSUMER.CREATE."+ns.InStream()+"."+readerName+"."+ns.In(events.PaymentConfirmed, "preflight"),
		"CONSUMER.INFO."+ns.OutStream()+"."+readerName, "CONSUMER.INFO."+ns.InStream()+"."+readerName,
		"CONSUMER.MSG.NEXT."+ns.OutStream()+"."+readerName, "CONSUMER.MSG.NEXT."+ns.InStream()+"."+readerName,
		"STREAM.INFO."+ns.DLQStream(), "CONSUMER.CREATE."+ns.DLQStream()+"."+readerName,
		"CONSUMER.INFO."+ns.DLQStream()+"."+readerName, "CONSUMER.MSG.NEXT."+ns.DLQStream()+"."+readerName,
	)
	if len(lacks) > 0 {
		r.fail(natsReading, "user "+w.Data.User+" may not publish on "+strings.Join(lacks, ", "),
			"when Redis has lost its data it cannot be filled again from what was told, and nothing is granted any more",
			"allow it what holdfast_worker has in deployments/nats/accounts.conf")
		return
	}
	r.ok(natsReading, "what was told, and what waits, can be read when Redis has lost its data")
}

// natsTrimming tries nothing, as natsPrivileges.
func (r *report) natsTrimming(w natsUser, err error, t Target) {
	in, dlq := events.Namespace(t.Namespace).InStream(), events.Namespace(t.Namespace).DLQStream()
	if err != nil {
		r.unknown(natsTrimming, "the permissions of the user are not known", "see "+NATSPrivileges)
		return
	}
	lacks := w.lacks(
		"STREAM.INFO."+in, "STREAM.INFO."+dlq, "CONSUMER.NAMES."+in, "CONSUMER.INFO."+in+"."+readerName, "STREAM.PURGE."+in, "STREAM.MSG.DELETE."+in,
		"CONSUMER.CREATE."+in+"."+readerName, "CONSUMER.MSG.NEXT."+in+"."+readerName, "CONSUMER.DELETE."+in+"."+readerName,
		"CONSUMER.CREATE."+dlq+"."+readerName, "CONSUMER.MSG.NEXT."+dlq+"."+readerName, "CONSUMER.DELETE."+dlq+"."+readerName,
	)
	if len(lacks) > 0 {
		r.warn(natsTrimming, "user "+w.Data.User+" may not publish on "+strings.Join(lacks, ", "),
			"no inbound event is ever removed, and the stream grows until it is full",
			"allow it what holdfast_worker has in deployments/nats/accounts.conf")
		return
	}
	r.ok(natsTrimming, "inbound events that are answered can be removed")
}

// natsPrivileges tries nothing: it reads what the server says that the user may.
func (r *report) natsPrivileges(w natsUser, err error, t Target) {
	const (
		why = "a mistake, or whoever gets at the worker, could pass for a publisher or throw away what is stored"
		fix = "use a user like holdfast_worker in deployments/nats/accounts.conf"
	)
	if err != nil {
		found := err.Error()
		if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded) {
			found = "nobody answers on " + userInfo
		}
		r.unknown(NATSPrivileges, found, "allow the user to publish on "+userInfo+", and give NATS a system account")
		return
	}
	user := "user " + w.Data.User
	if w.Data.User == "" {
		user = "anybody"
	}
	if w.Data.Permissions == nil {
		r.warn(NATSPrivileges, fmt.Sprintf("%s may publish and subscribe everywhere in account %s", user, w.Data.Account), why, fix)
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
		{"not-" + t.Namespace + ".preflight", "publish on others' subjects", w.Data.Permissions.Publish},
		{"_INBOX.preflight.preflight", "hear others' answers", w.Data.Permissions.Subscribe},
		{"not-" + t.Namespace + ".preflight", "hear others' subjects", w.Data.Permissions.Subscribe},
	} {
		if act.of.permits(act.subject) {
			may = append(may, act.means)
		}
	}
	if len(may) > 0 {
		r.warn(NATSPrivileges, user+" may "+strings.Join(may, ", "), why, fix)
		return
	}
	r.ok(NATSPrivileges, user+" may do nothing that a worker does not, as far as was looked for")
}
