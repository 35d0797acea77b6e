package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/connect"
	"holdfast/internal/holds"
	"holdfast/internal/preflight"
	"holdfast/internal/stack/stacktest"
)

// TestSecureServers_URLsInFiles_VerifiedAndReported gives the URLs of servers with TLS by files. A
// worker runs on them, the preflight reports how each connection is protected, and a server that
// cannot be verified is refused.
func TestSecureServers_URLsInFiles_VerifiedAndReported(t *testing.T) {
	t.Parallel()
	servers := stacktest.NewSecureServers(t)
	files := func(user string) (flags []string) {
		nats, redis, postgres := servers.URLs(user)
		for name, url := range map[string]string{"nats": nats, "redis": redis, "postgres": postgres} {
			flags = append(flags, "--"+name+"-url-file", fileOf(t, name, url+"\n"))
		}
		return flags
	}
	authorities := []string{"--nats-ca-file", servers.CAFile(), "--redis-ca-file", servers.CAFile()}
	if code, out := execute(t.Context(), slices.Concat([]string{"migrate"}, files("migrator"), authorities)...); code != exitOK {
		t.Fatalf("worker migrate: exit code %d: %s", code, out)
	}
	stacktest.Must(t, servers.Grant(t.Context()))

	var text, errs strings.Builder // these servers are not durable, so the preflight fails
	run(t.Context(), slices.Concat([]string{"preflight", "--no-migrate", "-o", "json", "--lock-strategy", rangeStrategy},
		files("worker"), authorities), streams{&text, &errs})
	var checks []preflight.Check
	if err := json.Unmarshal([]byte(text.String()), &checks); err != nil {
		t.Fatalf("%v: %s %s", err, text.String(), errs.String())
	}
	links := make(map[string]connect.Link)
	for _, c := range checks {
		if c.Link != nil {
			links[c.Name] = connect.Link{Encrypted: c.Link.Encrypted, Verified: c.Link.Verified, Login: c.Link.Login}
		}
	}
	for name, login := range map[string]string{
		"redis.link": "ACL user holdfast_worker", "nats.link": "password", "postgres.link": "password",
	} {
		if want := (connect.Link{Encrypted: true, Verified: true, Login: login}); links[name] != want {
			t.Errorf("%s is %+v, want %+v", name, links[name], want)
		}
	}

	args := slices.Concat([]string{"run", "--no-migrate", "--http-addr", "127.0.0.1:0"}, files("worker"), authorities)
	worker := launch(t, false, args)
	worker.awaitStarted(t)
	worker.stop(t)

	code, out := execute(t.Context(), slices.Concat([]string{"preflight", "--lock-strategy", rangeStrategy}, files("worker"))...)
	if n := strings.Count(out, "unknown authority"); code != exitFailed || n != 2 { // the Postgres URL names its authority
		t.Errorf("without the authorities: exit code %d, %d refusals, want 2: %s", code, n, out)
	}
	for _, password := range stacktest.Passwords() {
		if strings.Contains(out+text.String()+errs.String(), password) {
			t.Error("the output contains a password")
		}
	}
}

// TestSettings_URLAndFile_Refused gives a URL and its file, and combinations that cannot work.
func TestSettings_URLAndFile_Refused(t *testing.T) {
	t.Parallel()
	url := fileOf(t, "url", "redis://ann:s3cret@127.0.0.1:1")
	const rest = " --nats-url nats://127.0.0.1:1 --postgres-url postgres://127.0.0.1:1/x"
	for line, want := range map[string]string{
		"audit --redis-url redis://127.0.0.1:1 --redis-url-file " + url:                                   "are both set: omit one of them",
		"audit --redis-ca-file ca.pem --redis-url-file " + url + rest:                                     "--redis-url: --redis-ca-file: open ca.pem",
		"audit --redis-url redis+cluster://ann:s3cret@127.0.0.1:1/2" + rest:                               "--redis-url: not a Redis URL",
		"preflight --lock-strategy redlock --lock-redis-urls redis://a,redis://b,redis+sentinel://c/main": "URL 3 of --lock-redis-urls: a failover loses locks",
		"audit --nats-creds-file absent --redis-url-file " + url + rest:                                   "--nats-creds-file: stat absent",
		"preflight --nats-cert-file a --redis-url-file " + url + rest:                                     "--nats-cert-file and --nats-key-file belong together",
		"audit --redis-url-file " + url + rest + "?sslmode=verify-ca&sslrootcert=absent":                  "--postgres-url: the files for TLS in the Postgres URL cannot be used: unable to read CA file: open absent",
	} {
		if code, out := execute(t.Context(), strings.Fields(line)...); code != exitUsage ||
			!strings.Contains(out, want) || strings.Contains(out, "s3cret") {
			t.Errorf("worker %s: exit code %d, want %q: %s", line, code, want, out)
		}
	}
}

// TestDatabase_EncodingLacksCharacters_Refused starts a worker on a database that cannot store every text. It refuses,
// also with --preflight warn, and says what to do.
func TestDatabase_EncodingLacksCharacters_Refused(t *testing.T) {
	t.Parallel()
	s := newHarnessOn(t, urls{stacktest.Shared().NATSURL, stacktest.Shared().RedisURL, stacktest.Shared().PostgresURL})
	url := stacktest.PostgresURL(stacktest.StartPostgres(t))
	stacktest.PostgresSQL(t, url, "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
	s.urls.postgres = strings.Replace(url, "/postgres?", "/latin?", 1)
	refused := s.launch()
	refused.awaitExit(t)
	for _, want := range []string{"postgres.encoding: ", "LATIN1", "ENCODING 'UTF8'", "does not override"} {
		if !strings.Contains(refused.log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}

// TestPgBouncer_TransactionMode_Refused starts a worker behind PgBouncer. In the mode session it
// starts; in the mode transaction it refuses, also with --preflight warn, and says why.
func TestPgBouncer_TransactionMode_Refused(t *testing.T) {
	t.Parallel()
	s := newHarnessOn(t, urls{stacktest.Shared().NATSURL, stacktest.Shared().RedisURL, stacktest.Shared().PostgresURL})
	parsed, err := pgx.ParseConfig(s.urls.postgres)
	stacktest.Must(t, err)
	s.urls.postgres = stacktest.StartPgBouncer(t, int(parsed.Port), "session")
	worker := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 1)
	worker.stop(t)

	s.urls.postgres = stacktest.StartPgBouncer(t, int(parsed.Port), "transaction")
	refused := s.launch()
	refused.awaitExit(t)
	for _, want := range []string{"postgres.sessions: a pooler", "LISTEN", "pool_mode = session", "does not override"} {
		if !strings.Contains(refused.log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}
