package deployments

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"holdfast/internal/events"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

// These tests check what the users in these files may not do. The tests of both programs, which CI
// runs with HOLDFAST_TEST_PRIVILEGES=least, show that each user may do what it needs.
func TestMain(m *testing.M) { stacktest.Main(m) }

const (
	ns       = stacktest.RestrictedNamespace
	subjects = events.Namespace(ns)
)

// newServers returns servers with these users, after worker migrate has run as the migrator.
func newServers(t *testing.T) *stacktest.RestrictedServers {
	t.Helper()
	g := stacktest.NewRestrictedServers(t)
	ctx := t.Context()
	_, _, address := g.URLs("migrator")
	db, err := store.Open(ctx, address, ns)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Migrate(ctx, ns); err != nil {
		t.Fatal(err)
	}
	if err := g.Grant(ctx); err != nil {
		t.Fatal(err)
	}
	client := redisAs(t, g, "migrator")
	if err := recovery.WriteFormat(ctx, ns, client); err != nil {
		t.Fatal(err)
	}
	if _, err := recovery.Initialise(ctx, ns, client, record.AllPartitions, uuid.NewString()); err != nil {
		t.Fatal(err)
	}
	nc, _ := natsAs(t, g, "migrator")
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := events.Setup(ctx, js, subjects, events.Retention{HoldLifetime: time.Hour, AnswerTTL: time.Hour},
		zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	return g
}

// natsAs connects as a user. refused receives the permission violations that the server reports.
func natsAs(t *testing.T, g *stacktest.RestrictedServers, user string) (nc *nats.Conn, refused chan string) {
	t.Helper()
	address, _, _ := g.URLs(user)
	refused = make(chan string, 64)
	nc, err := events.Connect(address, user, t.Logf,
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err.Error() }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, refused
}

func redisAs(t *testing.T, g *stacktest.RestrictedServers, user string) *redis.Client {
	t.Helper()
	_, address, _ := g.URLs(user)
	return stacktest.ConnectRedis(t, address)
}

func postgresAs(t *testing.T, g *stacktest.RestrictedServers, user string) *pgx.Conn {
	t.Helper()
	_, _, address := g.URLs(user)
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
