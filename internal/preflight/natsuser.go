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

// who is what a server tells a user of itself and of the user.
type who struct {
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

// who asks. The user has no permissions set, and so all of them, when Data.Permissions is nil.
func (l *natsLook) who(ctx context.Context) (w who, err error) {
	err = l.ask(ctx, func(ctx context.Context) error {
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

// natsReading is the check whether the user may read what Redis is filled from when it has lost its data.
const natsReading = "nats.rebuild"

// natsReading tries nothing, as natsPrivileges.
func (r *report) natsReading(w who, err error, t Target) {
	ns := events.Subjects(t.Namespace)
	const consumer = "preflight" // a name like that of any consumer that reads in order
	if err != nil {
		r.unknown(natsReading, "what the user may do is not known", "see "+NATSPrivileges)
		return
	}
	var lacks []string
	for _, subject := range []string{
		"STREAM.INFO." + ns.OutStream(), "STREAM.INFO." + ns.InStream(),
		"CONSUMER.CREATE." + ns.OutStream() + "." + consumer, "CONSUMER.CREATE." + ns.InStream() + "." + consumer + "." + ns.In(events.PaymentConfirmed, "preflight"),
		"CONSUMER.INFO." + ns.OutStream() + "." + consumer, "CONSUMER.INFO." + ns.InStream() + "." + consumer,
		"CONSUMER.MSG.NEXT." + ns.OutStream() + "." + consumer, "CONSUMER.MSG.NEXT." + ns.InStream() + "." + consumer,
		"STREAM.INFO." + ns.DLQStream(), "CONSUMER.CREATE." + ns.DLQStream() + "." + consumer,
		"CONSUMER.INFO." + ns.DLQStream() + "." + consumer, "CONSUMER.MSG.NEXT." + ns.DLQStream() + "." + consumer,
	} {
		if subject = "$JS.API." + subject; w.Data.Permissions != nil && !w.Data.Permissions.Publish.permits(subject) {
			lacks = append(lacks, subject)
		}
	}
	if len(lacks) > 0 {
		r.fail(natsReading, "user "+w.Data.User+" may not publish on "+strings.Join(lacks, ", "),
			"when Redis has lost its data it cannot be filled again from what was told, and nothing is granted any more",
			"allow it what holdfast_worker has in deployments/nats/accounts.conf")
		return
	}
	r.ok(natsReading, "what was told, and what waits, can be read when Redis has lost its data")
}

// natsPrivileges tries nothing: it reads what the server says that the user may.
func (r *report) natsPrivileges(w who, err error, t Target) {
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
	ns := events.Subjects(t.Namespace)
	var may []string
	for _, act := range []struct {
		subject, means string
		of             permission
	}{
		{"$JS.API.STREAM.PURGE." + ns.InStream(), "purge " + ns.InStream(), w.Data.Permissions.Publish},
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
