package postgres_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/postgres"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/store"
)

func TestMain(m *testing.M) { stacktest.MainAlone(func() (int, error) { return m.Run(), nil }) }

// TestQuery_Names_AreThoseOfTheFiles compares the names that the packages use with the files that they embed.
func TestQuery_Names_AreThoseOfTheFiles(t *testing.T) {
	t.Parallel()
	used := regexp.MustCompile(`\bquery\("(\w+)"\)`)
	for _, dir := range []string{"../audit", "../store"} {
		var names, files []string
		sources, _ := filepath.Glob(dir + "/*.go")          // the pattern is valid
		queries, _ := filepath.Glob(dir + "/queries/*.sql") // likewise
		for _, source := range sources {
			text, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range used.FindAllSubmatch(text, -1) {
				names = append(names, string(m[1]))
			}
		}
		for _, file := range queries {
			files = append(files, strings.TrimSuffix(filepath.Base(file), ".sql"))
		}
		slices.Sort(names)
		if names = slices.Compact(names); len(files) == 0 || !slices.Equal(names, files) {
			t.Errorf("%s uses %v, and its files are %v", dir, names, files)
		}
	}
}

// pair is a primary with a namespace in which slot A of hall has capacity 2, and a standby of it.
type pair struct {
	*testing.T
	primary, standby *stack.Server
}

// newPair starts a pair. settings are those of the standby.
func newPair(t *testing.T, settings ...string) *pair {
	t.Helper()
	p := &pair{T: t, primary: stacktest.StartPostgres(t)}
	db := p.open(p.primary)
	if err := db.Migrate(t.Context(), "holdfast"); err != nil {
		t.Fatal(err)
	}
	p.set(db, 2)
	p.standby = stacktest.StartPostgresPair(t, p.primary, settings...).Standby
	return p
}

// open opens the namespace on servers.
func (p *pair) open(servers ...*stack.Server) *store.Store {
	p.Helper()
	db, err := store.Open(p.Context(), stacktest.PostgresURL(servers...), "holdfast")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(db.Close)
	return db
}

// set sets the capacity as an inventory.set event does.
func (p *pair) set(db *store.Store, capacity int64) {
	p.Helper()
	answers := db.SetCapacities(p.Context(), []holds.CapacityChange{{
		EventID: uuid.NewString(), Position: holds.StreamPosition{At: time.Now(), Seq: uint64(time.Now().UnixNano())},
		Resource: "hall", Names: []string{"A"}, Capacity: capacity, Held: []int64{0},
	}})
	if err := answers[0].Err; err != nil {
		p.Fatal(err)
	}
}

// capacity reads the capacity as a decision does.
func capacity(ctx context.Context, db *store.Store) (int64, error) {
	rows, err := db.InventoryRows(ctx, []string{"hall"}, [][]string{{"A"}})
	if err != nil {
		return 0, err
	}
	return rows[0][0].Capacity, nil
}

// sql runs a statement on one server, without any check of the server, and returns its value.
func (p *pair) sql(server *stack.Server, statement string) (value string) {
	p.Helper()
	return stacktest.PostgresSQL(p.T, stacktest.PostgresURL(server), statement)
}

// TestConfig_LaggingStandbyIsFirst_PrimaryIsRead uses a URL with a lagging standby before its
// primary. Later the primary stops and the standby replaces it.
func TestConfig_LaggingStandbyIsFirst_PrimaryIsRead(t *testing.T) {
	t.Parallel()
	p := newPair(t, "recovery_min_apply_delay=1h")
	p.set(p.open(p.primary), 1)
	if old := p.sql(p.standby, "SELECT capacity FROM holdfast.inventory"); old != "2" {
		t.Fatalf("the standby has a capacity of %s, want the old 2", old)
	}
	both := p.open(p.standby, p.primary)
	if found, err := capacity(t.Context(), both); found != 1 || err != nil {
		t.Errorf("the capacity is %d (%v), want 1 from the primary", found, err)
	}
	if _, err := capacity(t.Context(), p.open(p.standby)); !errors.Is(err, postgres.ErrStandby) {
		t.Errorf("the standby alone: %v, want %v", err, postgres.ErrStandby)
	}

	if err := p.primary.Kill(); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the standby to be rejected", func() bool {
		found, err := capacity(t.Context(), both)
		if err == nil {
			t.Fatalf("without a primary the capacity was read as %d", found)
		}
		return errors.Is(err, postgres.ErrStandby) // the sessions of the primary end first
	})
	p.sql(p.standby, "SELECT pg_promote()")
	stacktest.Eventually(t, "the promoted standby to be read", func() bool {
		_, err := capacity(t.Context(), both)
		return err == nil
	})
	p.set(both, 3)
}

// watcher receives an element for each reported change.
type watcher chan struct{}

func (watcher) Now(context.Context) (holds.Time, error) { return holds.TimeFromMillis(1), nil }
func (watcher) InventorySynced(holds.Time)              {}
func (watcher) InventorySyncLost()                      {}

func (w watcher) BumpRevisions(context.Context, ...string) error {
	select {
	case w <- struct{}{}:
	default:
	}
	return nil
}

// TestConfig_PrimaryBecomesReadOnly_SessionsLeaveIt makes a primary read-only, as before a
// switchover, while it has sessions. They are not used any more, and the server that replaces it
// is.
func TestConfig_PrimaryBecomesReadOnly_SessionsLeaveIt(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	both := p.open(p.primary, p.standby)
	notified := make(chan struct{}, 1)
	watching, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		_ = both.Watch(watching, watcher(notified), zerolog.Nop()) // it returns no errors
	})
	t.Cleanup(func() { stop(); watch.Wait() })
	if found, err := capacity(t.Context(), both); found != 2 || err != nil {
		t.Fatalf("the capacity is %d (%v), want 2", found, err)
	}
	p.sql(p.primary, "ALTER SYSTEM SET default_transaction_read_only = on")
	p.sql(p.primary, "SELECT pg_reload_conf()")
	var last error
	stacktest.Eventually(t, "sessions to be rejected", func() bool {
		_, last = capacity(t.Context(), both)
		return last != nil
	})
	if !errors.Is(last, postgres.ErrReadOnly) {
		t.Errorf("rejected with %v, want %v", last, postgres.ErrReadOnly)
	}
	p.sql(p.standby, "SELECT pg_promote()")
	stacktest.Eventually(t, "the promoted standby to be read", func() bool {
		_, err := capacity(t.Context(), both)
		return err == nil
	})
	p.set(both, 7)
	if old := p.sql(p.primary, "SELECT capacity FROM holdfast.inventory"); old != "2" {
		t.Errorf("the old primary has a capacity of %s: it was changed", old)
	}
	if found, err := capacity(t.Context(), both); found != 7 || err != nil {
		t.Errorf("the capacity is %d (%v), want 7 from the new primary", found, err)
	}
	stacktest.Eventually(t, "changes on the new primary to be reported", func() bool {
		p.sql(p.standby, "UPDATE holdfast.inventory SET capacity = capacity + 1")
		select {
		case <-notified:
			return true
		default:
			return false
		}
	})
}

// TestConfig_IdleConnectionLosesAllBytes_AnotherIsUsed has a pool whose only connection loses all bytes while nothing uses
// it, as behind a firewall that has forgotten it. A call without a deadline, such as those of a rebuild of Redis, does not
// wait for it until the operating system gives the connection up.
func TestConfig_IdleConnectionLosesAllBytes_AnotherIsUsed(t *testing.T) {
	t.Parallel()
	address, proxy := stacktest.ProxyTo(t, stacktest.PostgresURL(stacktest.StartPostgres(t)))
	config, err := postgres.Config(address, "holdfast", nil)
	if err != nil {
		t.Fatal(err)
	}
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true } // by default after a second
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { postgres.Close(pool) })
	query := func() {
		t.Helper()
		if _, err := pool.Exec(stacktest.WaitContext(t), "SELECT 1"); err != nil {
			t.Error(err)
		}
	}
	query()
	proxy.HalfOpen()
	query()
	if n := pool.Stat().NewConnsCount(); n != 2 {
		t.Errorf("%d connections were opened, want 2", n)
	}
}

// TestConfig_TargetSessionAttrs_AcceptedOrRefused tries the values of target_session_attrs in URLs
// and in the environment.
func TestConfig_TargetSessionAttrs_AcceptedOrRefused(t *testing.T) {
	const plain = "postgres://u:s3cret@a:1,b:2/d"
	for _, demanded := range []string{"any", "primary", "read-write"} {
		if _, err := postgres.Config(plain+"?target_session_attrs="+demanded, "holdfast", nil); err != nil {
			t.Errorf("%s: %v", demanded, err)
		}
	}
	for _, demanded := range []string{"read-only", "standby", "prefer-standby"} {
		for _, address := range []string{
			plain + "?target_session_attrs=" + demanded,
			"host=a,b port=1,2 user=u password=s3cret dbname=d target_session_attrs=" + demanded,
		} {
			if _, err := postgres.Config(address, "holdfast", nil); !errors.Is(err, postgres.ErrTarget) {
				t.Errorf("%s: %v, want %v", demanded, err, postgres.ErrTarget)
			}
		}
		t.Setenv("PGTARGETSESSIONATTRS", demanded)
		if _, err := postgres.Config(plain, "holdfast", nil); !errors.Is(err, postgres.ErrTarget) {
			t.Errorf("%s in the environment: %v, want %v", demanded, err, postgres.ErrTarget)
		}
		t.Setenv("PGTARGETSESSIONATTRS", "")
	}
	for _, address := range []string{"http://u:s3cret@a", plain + "?target_session_attrs=best"} {
		if _, err := postgres.Config(address, "holdfast", nil); !errors.Is(err, postgres.ErrURL) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %v", address, err, postgres.ErrURL)
		}
	}
}

// TestConfig_AtInURL_PartOfPasswordIsNoHost parses URLs with an @ besides that after the login. Errors contain the hosts and
// the database, so none of them may be a part of the password.
func TestConfig_AtInURL_PartOfPasswordIsNoHost(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"postgres://u:pass@s3cret@db1/d", "postgresql://u:pass@s3cret@db1", "postgres://u:12/s3cret@db1/d",
		"postgres://u:a?b@s3cret@db1/d", "postgres://u:s3cret@db1,postgres://u:s3cret@db2/d", "postgres://s3cret/x@db1/d",
		"postgres://u:pass@s3cret@db1/d?application_name=a",
	} {
		if _, err := postgres.Config(address, "holdfast", nil); !errors.Is(err, postgres.ErrURL) ||
			strings.Contains(err.Error(), "s3") {
			t.Errorf("%s: %v, want %v", address, err, postgres.ErrURL)
		}
	}
	for address, password := range map[string]string{
		"postgres://u:a%40b@h/d": "a@b", "postgres://u:a%40b%2F@h,i:2/d?application_name=a@b": "a@b/",
		"postgres://u:a?b@h/d": "a?b", "postgres://h/d?user=u&application_name=a@b": "",
		"postgres://h?user=u&application_name=a/b@c": "", "host=h user=u dbname=d password=a@b://@c@d": "a@b://@c@d",
	} {
		config, err := postgres.Config(address, "holdfast", nil)
		if err != nil {
			t.Errorf("%s: %v", address, err)
		} else if c := config.ConnConfig; c.Host != "h" || c.User != "u" || c.Password != password {
			t.Errorf("%s: host %s, user %s, password %s", address, c.Host, c.User, c.Password)
		}
	}
}
