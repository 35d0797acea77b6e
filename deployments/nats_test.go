package deployments

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// inbound has the events that each team publishes.
var inbound = map[string][]string{
	"booking":   {events.BookingRequested, events.BookingExtended, events.BookingCancelled, events.ReservationCancelled},
	"payment":   {events.PaymentStarted, events.PaymentConfirmed},
	"inventory": {events.InventorySet},
}

// api has requests that change or read streams and consumers, with the users that may send them.
var api = map[string][]string{
	"$JS.API.INFO":                                             {"worker"},
	"$JS.API.STREAM.NAMES":                                     {},
	"$JS.API.STREAM.LIST":                                      {},
	"$JS.API.STREAM.INFO.HOLDFAST_IN":                          {"migrator", "worker", "operator", "auditor"},
	"$JS.API.STREAM.INFO.HOLDFAST_OUT":                         {"migrator", "worker", "operator", "auditor"},
	"$JS.API.STREAM.INFO.OTHERS":                               {},
	"$JS.API.STREAM.CREATE.HOLDFAST_IN":                        {"migrator"},
	"$JS.API.STREAM.CREATE.OTHERS":                             {},
	"$JS.API.STREAM.UPDATE.HOLDFAST_IN":                        {"migrator"},
	"$JS.API.STREAM.UPDATE.HOLDFAST_OUT":                       {"migrator"},
	"$JS.API.STREAM.PURGE.HOLDFAST_IN":                         {"worker"},
	"$JS.API.STREAM.PURGE.HOLDFAST_OUT":                        {},
	"$JS.API.STREAM.PURGE.HOLDFAST_DLQ":                        {},
	"$JS.API.STREAM.DELETE.HOLDFAST_IN":                        {},
	"$JS.API.STREAM.DELETE.HOLDFAST_OUT":                       {},
	"$JS.API.STREAM.DELETE.HOLDFAST_DLQ":                       {},
	"$JS.API.STREAM.SNAPSHOT.HOLDFAST_OUT":                     {},
	"$JS.API.STREAM.RESTORE.HOLDFAST_OUT":                      {},
	"$JS.API.STREAM.PEER.REMOVE.HOLDFAST_OUT":                  {},
	"$JS.API.STREAM.LEADER.STEPDOWN.HOLDFAST_OUT":              {},
	"$JS.API.STREAM.MSG.GET.HOLDFAST_IN":                       {"migrator", "worker", "operator", "auditor"},
	"$JS.API.STREAM.MSG.GET.HOLDFAST_OUT":                      {"migrator", "worker", "operator", "auditor"},
	"$JS.API.STREAM.MSG.GET.HOLDFAST_DLQ":                      {"migrator", "worker", "operator", "auditor"},
	"$JS.API.STREAM.MSG.DELETE.HOLDFAST_IN":                    {"worker"},
	"$JS.API.STREAM.MSG.DELETE.HOLDFAST_OUT":                   {},
	"$JS.API.STREAM.MSG.DELETE.HOLDFAST_DLQ":                   {"operator"},
	"$JS.API.DIRECT.GET.HOLDFAST_OUT":                          {},
	"$JS.API.CONSUMER.NAMES.HOLDFAST_OUT":                      {},
	"$JS.API.CONSUMER.NAMES.HOLDFAST_IN":                       {"worker"},
	"$JS.API.CONSUMER.LIST.HOLDFAST_OUT":                       {},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_OUT":                     {},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_OUT.mine":                {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_OUT.mine.holdfast.out.>": {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_DLQ.mine":                {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.CREATE.OTHERS.mine":                      {},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_OUT.booking":             {},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_OUT.booking.holdfast.>":  {},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_OUT.payment":             {},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_DLQ.booking":             {},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_DLQ.booking.holdfast.>":  {},
	"$JS.API.CONSUMER.DURABLE.CREATE.HOLDFAST_DLQ.booking":     {},
	"$JS.API.CONSUMER.DELETE.HOLDFAST_DLQ.booking":             {},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_IN.mine":                 {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_IN.mine.holdfast.>":      {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_IN.changes":              {"migrator"},
	"$JS.API.CONSUMER.DELETE.HOLDFAST_IN.mine":                 {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.DELETE.HOLDFAST_OUT.mine":                {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.DELETE.HOLDFAST_OUT.payment":             {},
	"$JS.API.CONSUMER.DELETE.HOLDFAST_IN.changes":              {"migrator"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_OUT.mine":              {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_IN.mine":               {"migrator", "worker", "operator", "auditor"},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_IN.requests":             {"migrator"},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_IN.requests.holdfast.>":  {"migrator"},
	"$JS.API.CONSUMER.CREATE.HOLDFAST_IN.payments":             {"migrator"},
	"$JS.API.CONSUMER.DURABLE.CREATE.HOLDFAST_OUT.mine":        {},
	"$JS.API.CONSUMER.DURABLE.CREATE.HOLDFAST_IN.requests":     {},
	"$JS.API.CONSUMER.DELETE.HOLDFAST_IN.requests":             {"migrator"},
	"$JS.API.CONSUMER.DELETE.HOLDFAST_IN.payments":             {"migrator"},
	"$JS.API.CONSUMER.DELETE.HOLDFAST_OUT.booking":             {},
	"$JS.API.CONSUMER.PAUSE.HOLDFAST_IN.requests":              {"migrator"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_IN.requests":           {"worker"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_IN.payments":           {"worker"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_OUT.booking":           {"booking"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_OUT.payment":           {"payment"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_OUT.inventory":         {"inventory"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_DLQ.booking":           {"booking"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_DLQ.payment":           {"payment"},
	"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_DLQ.inventory":         {"inventory"},
	"$JS.ACK.HOLDFAST_DLQ.booking.1.1.1.1.0":                   {"booking"},
	"$JS.ACK.HOLDFAST_IN.requests.1.1.1.1.0":                   {"worker"},
	"$JS.ACK.HOLDFAST_IN.payments.1.1.1.1.0":                   {"worker"},
	"$JS.ACK.HOLDFAST_OUT.booking.1.1.1.1.0":                   {"booking"},
	"$JS.ACK.HOLDFAST_OUT.payment.1.1.1.1.0":                   {"payment"},

	"holdfast.out.hold.created.x":       {"worker"},
	"holdfast.out.hold.confirmed.x":     {"worker"},
	"holdfast.dlq.malformed":            {"worker"},
	"holdfast.runs.x":                   {"operator"},
	"holdfast.svc.evaluate":             {"operator"},
	"holdfast.svc.availability":         {"operator", "booking", "inventory"},
	"holdfast.svc.hold":                 {"operator", "booking", "payment"},
	"holdfast.in.booking.imagined.x":    {"operator"},
	"holdfast.in.booking.requested.x.y": {"operator"},
	"others.in.booking.requested.x":     {},
	"others.out.hold.created.x":         {},
	"_INBOX.holdfast_booking.x":         {"worker"},
	"_INBOX.holdfast_worker.x":          {"worker"},
	"$SYS.REQ.SERVER.PING":              {},
	"$SYS.REQ.USER.INFO":                {"migrator", "worker", "auditor"},
	"$SRV.PING":                         {},
}

// heard has subjects with the users that may subscribe to them.
var heard = map[string][]string{
	">": {}, "*": {}, "*.>": {}, "holdfast.>": {}, "holdfast.in.>": {}, "holdfast.in.payment.confirmed.x": {}, "holdfast.out.>": {},
	"holdfast.out.hold.created.x": {}, "holdfast.dlq.>": {}, "holdfast.runs.>": {}, "others.>": {},
	"_INBOX.>": {}, "_INBOX.*": {}, "_INBOX.*.>": {},
	"_INBOX.holdfast_booking.>": {"booking"}, "_INBOX.holdfast_payment.>": {"payment"}, "_INBOX.holdfast_worker.>": {"worker"},
	"_INBOX.holdfast_operator.x.y": {"operator"}, "_INBOX.holdfast_booking": {},
	"$JS.>": {}, "$JS.API.>": {}, "$JS.API.STREAM.INFO.>": {}, "$JS.ACK.>": {}, "$JS.EVENT.ADVISORY.>": {}, "$JS.EVENT.METRIC.>": {},
	"$SYS.>": {}, "$SRV.>": {}, "$SRV.PING": {"worker"}, "$SRV.STATS.holdfast": {"worker"}, "$SRV.PING.others": {},
	"holdfast.svc.availability": {"worker"}, "holdfast.svc.evaluate": {"worker"}, "others.svc.availability": {},
}

// TestAccounts_EachSubject_OnlyAllowedUsers publishes and subscribes to each subject as each user.
func TestAccounts_EachSubject_OnlyAllowedUsers(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	may := make(map[string][]string, len(api)) // subject -> users
	for subject, users := range api {
		may[subject] = users
	}
	for team, its := range inbound {
		for _, event := range its {
			may[subjects.In(event, "x")] = []string{"operator", team}
		}
	}
	for _, user := range []string{"migrator", "worker", "operator", "auditor", "booking", "payment", "inventory"} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			nc, refused := natsAs(t, g, user)
			// The server reports a violation before it answers a ping.
			checked := func(kind, subject string, do func() error) (permitted bool) {
				t.Helper()
				if err := errors.Join(do(), nc.Flush()); err != nil {
					t.Fatalf("%s %s: %v", kind, subject, err)
				}
				err := nc.LastError()
				permitted = err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", subject)) || !strings.Contains(strings.ToLower(err.Error()), kind)
				if !permitted {
					<-refused
				}
				return permitted
			}
			for subject, users := range may {
				// Without a reply subject and with an invalid body JetStream does nothing.
				want := slices.Contains(users, user)
				if got := checked("publish", subject, func() error { return nc.Publish(subject, []byte("x")) }); got != want {
					t.Errorf("%s may publish on %s: %v, want %v", user, subject, got, want)
				}
			}
			for subject, users := range heard {
				want := slices.Contains(users, user)
				var sub *nats.Subscription
				got := checked("subscription", subject, func() (err error) { sub, err = nc.SubscribeSync(subject); return err })
				_ = sub.Unsubscribe() // fails when the subscription was refused
				if got != want {
					t.Errorf("%s may subscribe to %s: %v, want %v", user, subject, got, want)
				}
			}
		})
	}
}

// TestAccounts_PasswordInQuotes_IsUnchanged reads accounts.conf with a password that has all characters that NATS' configuration
// takes for its own, written as README.md says. Without quotes NATS takes its beginning for the password.
func TestAccounts_PasswordInQuotes_IsUnchanged(t *testing.T) {
	stacktest.Passwords() // sets those of the others
	const all = `Xk7,v=1;}{[]()#$P "'\n//`
	for value, want := range map[string]string{
		`"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(all) + `"`: all, `"12345678"`: "12345678", "Xk7,v=1": "Xk7",
	} {
		t.Setenv("HOLDFAST_NATS_WORKER_PASSWORD", value)
		options, err := server.ProcessConfigFile("nats/accounts.conf")
		if err != nil {
			t.Fatal(err)
		}
		worker := slices.IndexFunc(options.Users, func(u *server.User) bool { return u.Username == "holdfast_worker" })
		if got := options.Users[worker].Password; got != want {
			t.Errorf("the password in %s is %s, want %s", value, got, want)
		}
	}
}

// TestMigrator_StreamMisconfigured_Repairs runs the migrator on a stream with a too long duplicate
// window and a missing durable consumer.
func TestMigrator_StreamMisconfigured_Repairs(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	ctx := t.Context()
	admin, _ := natsAs(t, g, "admin")
	js, err := jetstream.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{subjects.In(events.BookingRequested, "x"), subjects.Out("hold.created", "x"), subjects.DLQ("malformed")} {
		if _, err := js.Publish(ctx, subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(ctx, subjects.InStream())
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Duplicates = 2 * time.Minute
	if _, err := js.UpdateStream(ctx, config); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(ctx, subjects.InStream(), events.ConsumerRequests); err != nil {
		t.Fatal(err)
	}
	nc, refused := natsAs(t, g, "migrator")
	asMigrator, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := events.Setup(ctx, asMigrator, subjects, events.Retention{HoldLifetime: time.Hour, AnswerTTL: time.Hour}, zerolog.Nop()); err != nil {
		t.Error(err)
	}
	if len(refused) > 0 {
		t.Error(<-refused)
	}
	if info, err := stream.Info(ctx); err != nil || info.Config.Duplicates >= 2*time.Minute {
		t.Errorf("%v: the stream is %+v", err, info)
	}
	if _, err := js.Consumer(ctx, subjects.InStream(), events.ConsumerRequests); err != nil {
		t.Error(err)
	}
}

// TestTeams_OwnAndOthersData_OnlyOwnAccessible has two teams use their permissions, and try to
// access the data of the other team.
func TestTeams_OwnAndOthersData_OnlyOwnAccessible(t *testing.T) {
	t.Parallel()
	g := newServers(t)
	ctx := t.Context()
	admin, _ := natsAs(t, g, "admin")
	adminJS, err := jetstream.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	for team, filters := range map[string][]string{
		"booking": {"holdfast.out.hold.>", "holdfast.out.booking.>", "holdfast.out.reservation.>"},
		"payment": {"holdfast.out.hold.confirmed.>", "holdfast.out.hold.confirm_rejected.>"},
	} {
		_, err := adminJS.CreateOrUpdateConsumer(ctx, subjects.OutStream(), jetstream.ConsumerConfig{
			Durable: team, FilterSubjects: filters, AckPolicy: jetstream.AckExplicitPolicy,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = adminJS.CreateOrUpdateConsumer(ctx, subjects.DLQStream(), jetstream.ConsumerConfig{
		Durable: "booking", HeadersOnly: true, AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	dead := nats.NewMsg(subjects.DLQ(events.ReasonMalformed))
	dead.Data = []byte("private")
	dead.Header.Set("Holdfast-Dlq-Subject", subjects.In(events.BookingRequested, "x"))
	if _, err := adminJS.PublishMsg(ctx, dead); err != nil {
		t.Fatal(err)
	}
	for _, outcome := range []string{"hold.created", "hold.confirmed", "inventory.updated"} {
		if _, err := adminJS.Publish(ctx, subjects.Out(outcome, "x"), []byte(outcome)); err != nil {
			t.Fatal(err)
		}
	}
	booking, refused := natsAs(t, g, "booking")
	js, err := jetstream.New(booking)
	if err != nil {
		t.Fatal(err)
	}

	// Its own data: booking publishes an event, and reads and acknowledges outcomes.
	if _, err := js.Publish(ctx, subjects.In(events.BookingRequested, "x"), []byte("x")); err != nil {
		t.Errorf("booking publishes: %v", err)
	}
	own, err := js.Consumer(ctx, subjects.OutStream(), "booking")
	if err != nil {
		t.Fatal(err)
	}
	batch, err := own.Fetch(2, jetstream.FetchMaxWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	var read []string
	for m := range batch.Messages() {
		read = append(read, string(m.Data()))
		if err := m.DoubleAck(ctx); err != nil {
			t.Errorf("booking acknowledges: %v", err)
		}
	}
	if fmt.Sprint(read) != "[hold.created hold.confirmed]" {
		t.Errorf("booking reads %v", read)
	}

	// Dead letters: only their headers, because a body may belong to another team.
	deadLetters, err := js.Consumer(ctx, subjects.DLQStream(), "booking")
	if err != nil {
		t.Fatal(err)
	}
	m, err := deadLetters.Next(jetstream.FetchMaxWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Headers().Get("Holdfast-Dlq-Subject"); got != dead.Header.Get("Holdfast-Dlq-Subject") || len(m.Data()) > 0 {
		t.Errorf("booking reads a dead letter of %q with the body %q", got, m.Data())
	}
	if err := m.DoubleAck(ctx); err != nil {
		t.Errorf("booking acknowledges a dead letter: %v", err)
	}

	// Data of others. A refused request gets no answer; the error handler receives the violation.
	denied := func(what string, do func() error) {
		t.Helper()
		failed := make(chan error, 1)
		go func() { failed <- do() }()
		select {
		case <-refused:
		case err := <-failed:
			t.Errorf("%s was answered with %v", what, err)
		}
	}
	denied("payment's consumer", func() error { _, err := js.Consumer(ctx, subjects.OutStream(), "payment"); return err })
	denied("payment's dead letters", func() error { _, err := js.Consumer(ctx, subjects.DLQStream(), "payment"); return err })
	denied("a whole dead letter", func() error {
		_, err := booking.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+subjects.DLQStream(), []byte(`{"seq":1}`))
		return err
	})
	denied("dead letters with bodies", func() error {
		_, err := js.UpdateConsumer(ctx, subjects.DLQStream(), jetstream.ConsumerConfig{Durable: "booking", AckPolicy: jetstream.AckExplicitPolicy})
		return err
	})
	denied("a consumer of its own", func() error {
		_, err := js.OrderedConsumer(ctx, subjects.OutStream(), jetstream.OrderedConsumerConfig{})
		return err
	})
	denied("a purge", func() error {
		_, err := booking.RequestWithContext(ctx, "$JS.API.STREAM.PURGE."+subjects.OutStream(), nil)
		return err
	})
	denied("a payment", func() error {
		_, err := js.Publish(ctx, subjects.In(events.PaymentConfirmed, "x"), []byte("x"))
		return err
	})

	// Replies arrive in its own inbox.
	if got := booking.NewInbox(); !strings.HasPrefix(got, "_INBOX.holdfast_booking.") {
		t.Errorf("an inbox of booking is %s", got)
	}
	inbox, err := booking.SubscribeSync(booking.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	worker, _ := natsAs(t, g, "worker")
	if err := errors.Join(booking.Flush(), worker.Publish(inbox.Subject, []byte("for booking")), worker.Flush()); err != nil {
		t.Fatal(err)
	}
	if m, err := inbox.NextMsg(time.Minute); err != nil || string(m.Data) != "for booking" {
		t.Errorf("booking received %v, %v", m, err)
	}
	// No message of others was removed.
	for stream, want := range map[string]uint64{subjects.InStream(): 1, subjects.OutStream(): 3} {
		s, err := adminJS.Stream(ctx, stream)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.CachedInfo().State.Msgs; got != want {
			t.Errorf("%s has %d messages, want %d", stream, got, want)
		}
	}
}

// TestREADME_AccountRequiresMaxBytes_CommandsCreateStreams runs the commands that worker migrate refers to, in an
// account whose streams must have a limit.
func TestREADME_AccountRequiresMaxBytes_CommandsCreateStreams(t *testing.T) {
	t.Parallel()
	stacktest.NeedTool(t, "nats")
	s := stacktest.NATSWithConfig(t, fmt.Sprintf(`
		jetstream { store_dir: %q, max_file_store: 100GB }
		accounts { A { jetstream { max_bytes_required: true }, users [ { user: a, password: a } ] } }
		no_auth_user: a`, t.TempDir()))
	nc, err := events.Connect(s.ClientURL(), t.Name(), t.Logf)
	stacktest.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	stacktest.Must(t, err)
	retention := events.Retention{HoldLifetime: 2 * time.Hour, AnswerTTL: 72 * time.Hour}
	migrate := func() error { return events.Setup(t.Context(), js, "holdfast", retention, zerolog.Nop()) }
	if err := migrate(); err == nil || !strings.Contains(err.Error(), "deployments/README.md") {
		t.Fatalf("the account refuses streams without a limit: %v", err)
	}
	_, section, _ := strings.Cut(read(t, "README.md"), "### An account whose streams must have a limit\n")
	_, section, _ = strings.Cut(section, "```sh\n")
	commands, _, _ := strings.Cut(section, "```")
	c := exec.CommandContext(t.Context(), "sh", "-eu", "-c", commands)
	c.Env = append(c.Environ(), "NATS_URL="+s.ClientURL(), "XDG_CONFIG_HOME="+t.TempDir())
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stacktest.Must(t, migrate())
	for _, wanted := range events.Namespace("holdfast").Streams(retention) {
		stream, err := js.Stream(t.Context(), wanted.Name)
		stacktest.Must(t, err)
		if drifts := events.Namespace("holdfast").DiffStream(stream.CachedInfo().Config, wanted, retention); len(drifts) > 0 {
			t.Errorf("%s: %v", wanted.Name, drifts)
		}
	}
}
