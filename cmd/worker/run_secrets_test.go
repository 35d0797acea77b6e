package main

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// outputs are all texts that a test has read, with their origins.
type outputs struct {
	mu    sync.Mutex
	texts map[string]string
}

func (o *outputs) add(from, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.texts == nil {
		o.texts = make(map[string]string)
	}
	o.texts[from] += text + "\n"
}

// wantNone fails the test when one of the words is in an output.
func (o *outputs) wantNone(t *testing.T, words ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for from, text := range o.texts {
		for _, word := range words {
			if at := strings.Index(text, word); at >= 0 {
				t.Errorf("%s contains %s: ...%s...", from, word, text[max(0, at-200):min(len(text), at+len(word)+100)])
			}
		}
	}
}

// TestSecrets_EveryOutput_NothingSecret puts marked words into metadata, user ids and the passwords
// of all servers. A worker at log level debug handles every kind of event, mistake and fault. None
// of the words may be in an output.
func TestSecrets_EveryOutput_NothingSecret(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	s := newRestrictedHarness(t)
	s.mayLack, s.logLevel = true, "debug"
	worker := s.startWorker("HOLDFAST_HOLDS_PER_USER=3")
	metadata, user := "metadata"+rand.Text(), "user"+rand.Text()
	secrets := append(stacktest.Passwords(), metadata, user)
	seen := &outputs{}

	replies := make(chan *nats.Msg, 1000)
	inbox := s.nc.NewInbox()
	sub, err := s.nc.ChanSubscribe(inbox, replies)
	stacktest.Must(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	send := func(subject, body string, headers ...string) {
		t.Helper()
		m := nats.NewMsg(subject)
		m.Data = []byte(body)
		m.Header.Set("Holdfast-Reply-To", inbox)
		for i := 0; i+1 < len(headers); i += 2 {
			m.Header.Set(headers[i], headers[i+1])
		}
		stacktest.Must(t, s.client.Publish(t.Context(), m))
		reply := <-replies
		if reply.Header.Get("Content-Type") == "application/json" { // the answer is a dead letter
			seen.add("reply about a dead letter", fmt.Sprint(reply.Header)+string(reply.Data))
		}
	}

	// Every event and rejection of the contract, with the words in it.
	s.setInventory("hall", holds.SlotSelection{Slots: []string{"A", "B", "C", "D", "E"}}, 1)
	planted := make([]contractRow, len(contractRows))
	for i, row := range contractRows {
		row.data = strings.ReplaceAll(row.data, "~user_id~:~ana~,",
			"~user_id~:~"+user+"~,~metadata~:{~"+metadata+"~:[~"+metadata+"~]},")
		row.data = strings.ReplaceAll(row.data, ",~metadata~:{~cart~:7}", "")
		planted[i] = row
	}
	limited := s.startWorker("HOLDFAST_HOLDS_PER_USER=3")
	worker.stop(t)
	s.goThrough(planted, make(map[string]bool))
	s.await("the words in outcomes, where they belong", func(outcomes []events.Envelope, _ []nats.Header) bool {
		return slices.ContainsFunc(outcomes, func(e events.Envelope) bool {
			return strings.Contains(string(e.Data), metadata) && strings.Contains(string(e.Data), user)
		})
	})

	// Every mistake that an event can have.
	const id = `"specversion":"1.0","id":"%d","source":"/s","type":"holdfast.booking.requested.v1"`
	data := func(meta, userID string) string {
		return fmt.Sprintf(`{"request_key":"k","user_id":%s,"resource_id":"hall","quantity":1,"slots":["A"],"metadata":%s}`, userID, meta)
	}
	good, userID := `{"a":"`+metadata+`"}`, `"`+user+`"`
	for i, body := range []string{
		data(`"`+metadata+`"`, userID), data(`["`+metadata+`"]`, userID),
		data(`{"`+metadata+`":1,"`+metadata+`":2}`, userID), data(`{"`+metadata+`":}`, userID),
		data(`{"a":"`+metadata+`\ud800"}`, userID), data("{\"a\":\""+metadata+"\xff\"}", userID),
		data(`{"a":"`+metadata+`"`, userID), data(`{"a":`+metadata+`}`, userID),
		data(`{"a":"`+strings.Repeat(metadata, 200)+`"}`, userID), data(`{"a":"`+strings.Repeat(metadata, 3000)+`"}`, userID),
		data(good, `"`+user+` `+user+`"`), data(good, `["`+user+`"]`), data(good, `{"`+user+`":1,"`+user+`":1}`),
		data(good, `"`+strings.Repeat(user, 10)+`"`), data(good, user),
		strings.Replace(data(good, userID), `"quantity":1`, `"quantity":1.0`, 1),
		strings.Replace(data(good, userID), `"quantity":1`, `"quantity":"`+metadata+`"`, 1),
		strings.Replace(data(good, userID), `"slots":["A"]`, `"slots":["`+metadata+` "]`, 1),
		strings.Replace(data(good, userID), `"slots":["A"]`, `"check_in":"`+metadata+`","check_out":"x"`, 1),
		strings.Replace(data(good, userID), `"resource_id":"hall"`, `"resource_id":"`+metadata+` "`, 1),
		strings.Replace(data(good, userID), `"k"`, `"`+metadata+` "`, 1),
		`{"hold_id":"` + metadata + `","metadata":` + good + `}`, `"` + metadata + `"`, metadata,
	} {
		head := fmt.Sprintf(id, i)
		send("holdfast.in.booking.requested.hall", `{`+head+`,"data":`+body+`}`)
		send("holdfast.in.booking.extended.hall",
			`{`+strings.Replace(head, "booking.requested", "booking.extended", 1)+`,"data":`+body+`}`)
		send("holdfast.in.payment.confirmed.hall",
			`{`+strings.Replace(head, "booking.requested", "payment.confirmed", 1)+`,"data":`+body+`}`)
		send("holdfast.in.booking.imagined.hall",
			`{`+strings.Replace(head, "booking.requested", "booking.imagined", 1)+`,"data":`+body+`}`)
		send("holdfast.in.booking.requested.other", `{`+head+`,"data":`+body+`}`)
		send("holdfast.in.booking.requested.hall", body, "ce-specversion", "1.0", "ce-id", head, "ce-source", "/s",
			"ce-type", "holdfast.booking.requested.v1", "content-type", "application/json")
		send("holdfast.in.booking.requested.hall", body)
		for _, endpoint := range []string{"availability", "hold", "evaluate"} {
			m := nats.NewMsg("holdfast.svc." + endpoint)
			m.Data = []byte(`{` + head + `,"data":` + body + `}`)
			m.Header.Set("Holdfast-Dlq-Subject", "holdfast.in.booking.requested.hall")
			answer, err := s.nc.RequestMsg(m, time.Minute)
			stacktest.Must(t, err)
			seen.add("answer of "+endpoint, fmt.Sprint(answer.Header)+string(answer.Data))
		}
	}

	// The log reports corruption in Redis, without the corrupt data.
	key := func(resource, name string) string {
		return fmt.Sprintf("%s:{%d}:%s:%s", s.namespace, record.Partition(resource), resource, name)
	}
	for _, record := range []string{
		metadata, "held " + metadata, "held 1 1 " + metadata + " 0 - ann k A {} ",
		"held 1 1 1 " + metadata + " - ann k A {} ", "held " + metadata + " 1 1 0 - " + user + " k A {} ",
		"held 1 1 1 0 - " + user + " k A {\"" + metadata + " " + metadata, "held 1 1 1 0 - " + user + " " + metadata,
		metadata + " 1 1 1 0 - " + user + " k A {} ",
	} {
		hold := holds.NewHoldID("ruin")
		stacktest.Must(t, s.redis.HSet(t.Context(), key("ruin", "records"), hold.UUID, record).Err())
		if status, body := limited.get(t, "/v1/holds/"+hold.String()); status != http.StatusOK {
			seen.add("answer about a corrupt hold", body)
		}
		s.pay(hold.String(), "p")
		s.publish(events.BookingExtended, "ruin", events.BookingExtendedData{HoldID: hold.String(), TTLSeconds: 60})
	}
	stacktest.Must(t, s.redis.HSet(t.Context(), key("ruin2", "counts"), "A", metadata).Err())
	stacktest.Must(t, s.redis.HSet(t.Context(), key("ruin3", "rev"), user, metadata).Err())
	for _, resource := range []string{"ruin2", "ruin3"} {
		s.book(resource, user, "k", holds.SlotSelection{Slots: []string{"A"}}, 60)
		_, body := limited.get(t, "/v1/availability?slot=A&resource_id="+resource)
		seen.add("availability of a corrupt resource", body)
	}
	limited.awaitLog(t, "corrupt data in redis")

	// Each server in turn rejects the worker's login.
	admin := stacktest.ConnectPostgres(t, s.urls.postgres)
	for _, statement := range []string{
		"ALTER ROLE holdfast_worker PASSWORD 'another'",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'holdfast_worker'",
	} {
		stacktest.Exec(t, admin, statement)
	}
	s.publish(events.BookingRequested, "hall",
		map[string]any{"request_key": "k9", "user_id": user, "resource_id": "hall", "quantity": 1,
			"metadata": map[string]string{"a": metadata}})
	limited.awaitLog(t, "password authentication failed") // Postgres refuses
	for _, command := range [][]any{{"ACL", "SETUSER", "holdfast_worker", "resetpass", ">another"},
		{"CLIENT", "KILL", "USER", "holdfast_worker"}} {
		stacktest.Must(t, s.redis.Do(t.Context(), command...).Err())
	}
	limited.awaitLog(t, "WRONGPASS") // Redis refuses
	stacktest.Must(t, s.restricted.DenyNATS("worker", "$JS.API.CONSUMER.MSG.NEXT.HOLDFAST_IN.requests"))
	limited.awaitLog(t, "permissions violation") // NATS refuses
	for _, path := range []string{"/readyz", "/metrics", "/healthz", "/v1/availability?resource_id=hall",
		"/v1/holds/" + user, "/v1/holds/" + metadata, "/nothing/" + metadata} {
		_, body := limited.get(t, path)
		if !strings.Contains(path, user) && !strings.Contains(path, metadata) {
			seen.add("GET "+path, body)
		}
	}
	// The worker may have begun to rebuild what was corrupt before. It cannot repair this any more.
	stacktest.Must(t, s.redis.HSet(t.Context(), key("ruin4", "counts"), "A", metadata).Err())
	// Every command, with these servers and with wrong URLs.
	at := s.urlsAs("worker")
	for _, verb := range []string{"preflight", "preflight -o json", "run --http-addr 127.0.0.1:0",
		"run --no-migrate --preflight refuse --http-addr 127.0.0.1:0", "migrate", "locks --http-addr " + limited.http,
		"locks -o json --http-addr " + limited.http, "audit", "audit -o json"} {
		flags := []string{"--namespace", s.namespace, "--nats-url", at.nats, "--redis-url", at.redis, "--postgres-url",
			at.postgres}
		if strings.HasPrefix(verb, "audit") {
			flags = s.auditFlags()[1:]
		}
		if strings.HasPrefix(verb, "locks") {
			flags = nil
		}
		_, out := execute(t.Context(), append(strings.Fields(verb), flags...)...)
		seen.add("worker "+verb, out)
		if out == "" || strings.HasPrefix(verb, "audit") && !strings.Contains(out, "ruin4") {
			t.Errorf("worker %s prints nothing, or nothing about the corruption: %s", verb, out)
		}
	}
	password := stacktest.Passwords()[0]
	wrong := func(scheme string) (urls []string) {
		for _, rest := range []string{
			"://ann:%s@127.0.0.1:1/x", "://ann:%s@127.0.0.1:bad/x", "://ann:%s@[::1", "://ann:%%zz%s@h/x",
			"://%s@127.0.0.1:1", "://127.0.0.1:1/x?password=%s", "://h h/x?password=%s", ":%s", "%s", "://ann:%s@",
			"://ann:%s@h/%%zz",
		} {
			one := scheme + fmt.Sprintf(rest, password)
			isName := scheme == "nats" && rest == "%s" || scheme == "postgres" && rest == "://%s@127.0.0.1:1" // %s is a host or user name
			if !isName {
				urls = append(urls, one)
			}
		}
		return urls
	}
	fine := s.urlsAs("migrator")
	for flag, urls := range map[string][]string{"--nats-url": wrong("nats"), "--redis-url": wrong("redis"),
		"--postgres-url": append(wrong("postgres"), "host=127.0.0.1 port=1 user=ann password="+password,
			"host=127.0.0.1 port=bad password="+password)} {
		for _, url := range urls {
			args := map[string]string{"--nats-url": fine.nats, "--redis-url": fine.redis, "--postgres-url": fine.postgres,
				flag: url}
			for _, verb := range []string{"preflight", "run", "migrate", "dev --once", "audit"} {
				line := strings.Fields(verb)
				for name, value := range args {
					line = append(line, name, value)
				}
				if verb == "run" || verb == "dev --once" {
					line = append(line, "--http-addr", "127.0.0.1:0")
				}
				code, out := execute(t.Context(), line...)
				if code == exitOK {
					t.Errorf("worker %s with %s %s exited with 0", verb, flag, url)
				}
				seen.add(fmt.Sprintf("worker %s with a wrong %s", verb, flag), out)
			}
		}
	}

	// What was stored: dead letters and the logs of workers.
	deadLetters, err := s.js.OrderedConsumer(t.Context(), s.subjects.DLQStream(), jetstream.OrderedConsumerConfig{})
	stacktest.Must(t, err)
	batch, err := deadLetters.Fetch(1000, jetstream.FetchMaxWait(5*time.Second))
	stacktest.Must(t, err)
	n := 0
	for m := range batch.Messages() {
		n++
		for name, values := range m.Headers() {
			if strings.HasPrefix(name, "Holdfast-Dlq-") {
				seen.add("header "+name, fmt.Sprint(values))
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d dead letters", n)
	}
	seen.add("the worker's log", limited.log.String()+worker.log.String())
	seen.wantNone(t, secrets...)
	if len(seen.texts) < 25 {
		t.Errorf("there are only %d outputs", len(seen.texts))
	}
}

// TestSecrets_OwnProcess_NothingSecret checks the output of separate processes, where libraries may
// print too.
func TestSecrets_OwnProcess_NothingSecret(t *testing.T) {
	t.Parallel()
	binary, err := workerBinary()
	stacktest.Must(t, err)
	const secret = "s3cret-in-url"
	for _, args := range [][]string{
		{"preflight", "--nats-url", "nats://a:" + secret + "@127.0.0.1:1", "--redis-url",
			"redis://a:" + secret + "@127.0.0.1:1", "--postgres-url", "postgres://a:" + secret + "@127.0.0.1:1/x"},
		{"run", "--http-addr", "127.0.0.1:0", "--nats-url", "nats://a:" + secret + "@127.0.0.1:1", "--redis-url",
			"redis://a:" + secret + "@127.0.0.1:1", "--postgres-url", "postgres://a:" + secret + "@127.0.0.1:1/x"},
		{"run", "--lock-strategy", "redlock", "--lock-redis-urls", "redis://a:" + secret + "@h:bad,redis://b,redis://c"},
		{"run", "--help"}, {"preflight", "--help"},
	} {
		cmd := exec.Command(binary, args...)
		cmd.Env = append(cmd.Environ(), "HOLDFAST_NATS_URL=nats://"+secret+"@127.0.0.1:1",
			"HOLDFAST_REDIS_URL=redis://:"+secret+"@127.0.0.1:1", "HOLDFAST_POSTGRES_URL=postgres://a:"+secret+"@127.0.0.1:1/x")
		out, _ := cmd.CombinedOutput()
		if len(out) == 0 || strings.Contains(string(out), secret) {
			t.Errorf("worker %v: %s", args, out)
		}
	}
}
