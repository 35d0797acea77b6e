package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
	"holdfast/internal/token"
)

// getJSON requests a path of a worker and decodes the answer, which must have the status 200.
func getJSON[T any](t *testing.T, worker *process, path string) (value T) {
	t.Helper()
	status, body := worker.get(t, path)
	if status != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, status, body)
	}
	if err := json.Unmarshal([]byte(body), &value); err != nil {
		t.Fatalf("GET %s: %v: %s", path, err, body)
	}
	return value
}

// TestAPIHolds_ManyHolds_ArePagedByDeadline requests live holds page by page, filtered and not.
func TestAPIHolds_ManyHolds_ArePagedByDeadline(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("shoes", holds.SlotSelection{}, 100)
	var want []string // ids in the order of the deadlines
	for n := range 7 {
		user := "ana"
		if n%2 == 1 {
			user = "ben"
		}
		data := bookingData("shoes", user+strconv.Itoa(n/2), "k"+strconv.Itoa(n), holds.SlotSelection{}, int64(1000+100*n))
		want = append(want, s.answer(s.publish(events.BookingRequested, "shoes", data)).Subject)
	}
	ids := func(query string) (all []string) {
		for next, pages := "", 0; ; pages++ {
			page := getJSON[queries.HoldsPage](t, worker, "/v1/holds?resource_id=shoes"+query+next)
			for _, hold := range page.Holds {
				all = append(all, hold.HoldID.String())
				if hold.UserID != "" {
					t.Errorf("the user of %s is shown", hold.HoldID)
				}
			}
			if page.Next == "" || pages == 20 {
				return all
			}
			next = "&after=" + page.Next
		}
	}
	for query, expected := range map[string][]string{
		"&limit=3": want, "&limit=7": want, "": want, "&state=held&limit=2": want, "&state=confirming": nil,
		"&user_id=ben1&limit=1": {want[3]}, "&after=" + want[4]: want[5:], "&user_id=eve": nil,
	} {
		if got := ids(query); strings.Join(got, " ") != strings.Join(expected, " ") {
			t.Errorf("%s: %v, want %v", query, got, expected)
		}
	}
	// A hold that ends between two pages is no reason to begin again.
	first := getJSON[queries.HoldsPage](t, worker, "/v1/holds?resource_id=shoes&limit=2")
	s.answer(s.publish(events.BookingCancelled, "shoes", events.BookingCancelledData{HoldID: want[1]}))
	second := getJSON[queries.HoldsPage](t, worker, "/v1/holds?resource_id=shoes&limit=2&after="+first.Next)
	if len(second.Holds) != 2 || second.Holds[0].HoldID.String() != want[2] {
		t.Errorf("the page after a hold that ended begins with %v, want %s", second.Holds, want[2])
	}
	shown := getJSON[queries.HoldsPage](t, worker, "/v1/holds?resource_id=shoes&limit=1&reveal=true")
	if shown.Holds[0].UserID != "ana0" {
		t.Errorf("revealed: %+v", shown.Holds[0])
	}
	worker.awaitLog(t, "private data revealed")
}

// TestAPIReveal_EachQuery_IsLoggedWithWho shows private data to a client with the token. The log says of each query which it
// was and who asked, without the token. One hold is hidden only when the client asks for that.
func TestAPIReveal_EachQuery_IsLoggedWithWho(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	const secret = "a-token-of-this-test"
	file := fileOf(t, "token", secret)
	worker := s.startWorker("HOLDFAST_API_TOKEN_FILE=" + file)
	s.setInventory("hall", seat, 1)
	hold := s.answer(s.book("hall", "canary", "k1", seat, 3600)).Subject
	b := newBrowser(t, worker)
	for path, want := range map[string]struct{ shown, logged bool }{
		"/v1/holds?resource_id=hall":                 {},
		"/v1/holds?resource_id=hall&reveal=true":     {true, true},
		"/v1/holds/" + hold:                          {true, false},
		"/v1/holds/" + hold + "?reveal=true":         {true, true},
		"/v1/holds/" + hold + "?reveal=false":        {},
		"/v1/holds/" + hold + "/history":             {},
		"/v1/holds/" + hold + "/history?reveal=true": {true, true},
	} {
		before := strings.Count(worker.log.String(), "private data revealed")
		response, body := b.do(http.MethodGet, path, nil, "Authorization", "Bearer "+secret)
		if response.StatusCode != http.StatusOK || strings.Contains(body, "canary") != want.shown {
			t.Errorf("%s: %s, private data shown: %t\n%s", path, response.Status, !want.shown, body)
		}
		what, _, _ := strings.Cut(path, "?")
		sum := sha256.Sum256([]byte(secret))
		entry := regexp.MustCompile(`"what":"` + what + `","who":"127\.0\.0\.1:\d+ token ` + hex.EncodeToString(sum[:4]) + `","via":"http".*"private data revealed"`)
		if want.logged {
			worker.eventually(t, "the log of "+path, func() bool { return entry.MatchString(worker.log.String()) })
		} else if now := strings.Count(worker.log.String(), "private data revealed"); now != before {
			t.Errorf("%s is logged as a reveal", path)
		}
	}
	if strings.Contains(worker.log.String(), secret) {
		t.Error("the log has the token")
	}
}

// TestAPIHolds_ManyPaymentsWait_AllAreListed pays for many holds while their row in Postgres is locked. All are
// listed as confirming, and the metrics behind the alert have them and their age.
func TestAPIHolds_ManyPaymentsWait_AllAreListed(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	const number = 230
	s.setInventory("hall", seat, number)
	requests := make(map[string]bool)
	for i := range number {
		requests[s.book("hall", fmt.Sprintf("u%d", i), fmt.Sprintf("k%d", i), seat, 600)] = true
	}
	s.await("all holds", func(outcomes []events.Envelope, _ []nats.Header) bool { return len(outcomes) == number+1 })
	defer s.lockRow(t, "inventory WHERE resource_id = 'hall'")()
	for _, o := range s.ofType(holds.EventHoldCreated) {
		s.pay(o.Subject, "p")
	}
	stacktest.Eventually(t, "all to be listed as confirming", func() bool {
		page := getJSON[queries.HoldsPage](t, worker, "/v1/holds?resource_id=hall&state=confirming&limit=500")
		return len(page.Holds) == number && page.Next == "" && page.Partial == ""
	})
	worker.awaitMetrics(t, func(value func(string) float64) bool {
		return value("holdfast_payments_unsettled") == number && value("holdfast_payments_unsettled_oldest_age_seconds") > 0
	})
	s.wantNoFindings() // also none about the agenda, which has the resource at a deadline that no hold has any more
}

// TestAPIHistory_PaidHold_HasEverything requests the history of a hold that was extended by mistake,
// paid, and cancelled.
func TestAPIHistory_PaidHold_HasEverything(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("hall", seat, 1)
	data := bookingData("hall", "ana", "k1", seat, 3600)
	data.Metadata = []byte(`{"cart":"secret-cart"}`)
	id := s.answer(s.publish(events.BookingRequested, "hall", data)).Subject
	malformed := s.publish(events.BookingExtended, "hall", map[string]any{
		"hold_id": id, "ttl_seconds": "secret-text", "slots": []any{map[string]string{"of": "secret-slot"}},
	})
	s.awaitDeadLetter(malformed)
	s.answer(s.pay(id, "p1"))
	s.answer(s.publish(events.ReservationCancelled, "hall", events.ReservationCancelledData{HoldID: id, Reason: "secret-illness"}))
	other := bookingData("hall", "ben", "k2", seat, 3600)
	s.answer(s.publish(events.BookingRequested, "hall", other)) // another hold's history

	history := getJSON[queries.History](t, worker, "/v1/holds/"+id+"/history")
	var got []string
	for _, e := range history.Entries {
		got = append(got, e.Kind+" "+e.Name)
	}
	have := "\n" + strings.Join(got, "\n") + "\n"
	for _, want := range []string{
		"event booking.requested", "outcome hold.created", "event booking.extended", "dead_letter malformed",
		"event payment.confirmed", "payment confirmed", "reservation confirmed", "outcome hold.confirmed",
		"event reservation.cancelled", "reservation cancelled", "outcome reservation.cancelled",
	} {
		if strings.Count(have, "\n"+want+"\n") != 1 {
			t.Errorf("the history has not one %q:%s", want, have)
		}
	}
	if len(got) != 11 || history.Partial != "" || history.Hold == nil || history.Hold.State != holds.Confirmed {
		t.Errorf("history: %d entries, %q, %+v%s", len(got), history.Partial, history.Hold, have)
	}
	if got[0] != "event booking.requested" {
		t.Errorf("it begins with %s", got[0])
	}
	private := regexp.MustCompile(`ana|secret-`)
	if _, body := worker.get(t, "/v1/holds/"+id+"/history"); private.MatchString(body) {
		t.Errorf("it shows private data: %s", body)
	}
	if _, body := worker.get(t, "/v1/holds/"+id+"/history?reveal=true"); !strings.Contains(body, "secret-cart") ||
		!strings.Contains(body, "secret-illness") || !strings.Contains(body, "secret-slot") {
		t.Errorf("revealed, it lacks private data: %s", body)
	}
	worker.eventually(t, "the revelation to be logged", func() bool {
		log := worker.log.String()
		return strings.Contains(log, "private data revealed") && strings.Contains(log, id+"/history")
	})
}

// awaitDeadLetter waits until an event is dead-lettered.
func (s *harness) awaitDeadLetter(eventID string) {
	s.t.Helper()
	stored, err := s.client.DeadLetters(s.t.Context())
	stacktest.Must(s.t, err)
	s.await("a dead letter of "+eventID, func([]events.Envelope, []nats.Header) bool {
		for l, err := range stored.All(s.t.Context(), client.DeadLetterFilter{}, true) {
			if err == nil && l.EventID == eventID {
				return true
			}
		}
		return false
	})
}

// TestAPI_EventNotUTF8_QueriesAnswer dead-letters an event of a hold whose id, a header, is not UTF-8, once on a
// subject that is not UTF-8 either. The queries that show it answer valid JSON.
func TestAPI_EventNotUTF8_QueriesAnswer(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	const hold = "hall." + zeros
	for _, name := range []string{"hall", "h\xffll"} {
		event := nats.NewMsg(s.subjects.In(events.BookingExtended, name))
		event.Data = []byte(`{"hold_id":"` + hold + `","ttl_seconds":60}`)
		event.Header = nats.Header{
			"ce-specversion": {"1.0"}, "ce-id": {"e\xff-" + name}, "ce-source": {"/s"}, "ce-type": {events.Type(events.BookingExtended)},
		}
		stacktest.Must(t, s.client.Publish(t.Context(), event))
	}
	s.awaitDeadLetter("e\uFFFD-h\uFFFDll")
	s.awaitDeadLetter("e\uFFFD-hall")
	subjects := make(map[string]string)
	for _, l := range getJSON[deadLettersPage](t, worker, "/v1/dead-letters?reason=malformed").DeadLetters {
		subjects[l.EventID] = l.Subject
	}
	if want := s.subjects.In(events.BookingExtended, "h\uFFFDll"); len(subjects) != 2 || subjects["e\uFFFD-h\uFFFDll"] != want {
		t.Errorf("dead letters: %q", subjects)
	}
	history := getJSON[queries.History](t, worker, "/v1/holds/"+hold+"/history")
	if len(history.Entries) == 0 || history.Entries[0].EventID != "e\uFFFD-hall" {
		t.Errorf("history: %+v", history)
	}
}

// TestAPI_OtherQueries_Answer requests the other queries, and what they refuse.
func TestAPI_OtherQueries_Answer(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	for _, name := range []string{"room-1", "room-2", "room-3", "shoes"} {
		s.setInventory(name, holds.SlotSelection{Slots: []string{"A", "B"}}, 2)
	}
	s.answer(s.book("room-2", "ana", "k1", holds.SlotSelection{Slots: []string{"A"}}, 3600))
	s.awaitDeadLetter(s.publish(events.BookingExtended, "room-2", map[string]any{"hold_id": 1}))

	first := getJSON[queries.ResourcesPage](t, worker, "/v1/resources?prefix=room&limit=2")
	if len(first.Resources) != 2 || first.Resources[1].ResourceID != "room-2" || first.Resources[1].LiveHolds != 1 ||
		first.Resources[0].Capacity != 4 || first.Resources[0].Slots != 2 || first.Next != "room-2" {
		t.Errorf("resources: %+v", first)
	}
	second := getJSON[queries.ResourcesPage](t, worker, "/v1/resources?prefix=room&limit=2&after="+first.Next)
	if len(second.Resources) != 1 || second.Resources[0].ResourceID != "room-3" || second.Next != "" {
		t.Errorf("the next resources: %+v", second)
	}
	var stats workerStats
	stacktest.Eventually(t, "stats with the live holds, which are left out while redis is slow", func() bool {
		stats = getJSON[workerStats](t, worker, "/v1/stats")
		return stats.LiveHolds != nil
	})
	if !stats.Ready || len(stats.Consumers) != 3 || len(stats.Streams) != 4 ||
		stats.LiveHolds.Total != 1 || stats.LiveHolds.Hottest[0].ResourceID != "room-2" ||
		stats.DeadLetters.ByReason["malformed"] != 1 || stats.DeadLetters.Total != 1 {
		t.Errorf("stats: %+v", stats)
	}
	found := getJSON[deadLettersPage](t, worker, "/v1/dead-letters?reason=malformed")
	if len(found.DeadLetters) != 1 || found.DeadLetters[0].Reason != "malformed" {
		t.Errorf("dead letters: %+v", found)
	}
	if none := getJSON[deadLettersPage](t, worker, "/v1/dead-letters?reason=poison"); len(none.DeadLetters) != 0 {
		t.Errorf("dead letters of another reason: %+v", none)
	}
	manySlots := ""
	for i := range holds.InventorySlotsMax {
		manySlots += fmt.Sprintf("&slot=%032d", i)
	}
	for path, want := range map[string]string{
		"/v1/holds": "400 resource_id",
		"/v1/holds?resource_id=shoes&state=expired":               "400 state: must be held or confirming",
		"/v1/holds?resource_id=shoes&limit=0":                     "400 limit: must be a whole number from 1 to 500",
		"/v1/holds?resource_id=shoes&limit=501":                   "400 limit",
		"/v1/holds?resource_id=shoes&after=x":                     "400 after: not a place",
		"/v1/holds?resource_id=shoes&colour=red":                  "400 colour: unknown parameter",
		"/v1/holds?resource_id=shoes&reveal=yes":                  "400 reveal: must be true or false",
		"/v1/holds/nonsense/history":                              "400 hold id",
		"/v1/holds/hall." + zeros + "/history":                    "404 unknown_hold",
		"/v1/holds/hall.ffffffffffff7fffbfffffffffffffff/history": "404 unknown_hold", // its time is in the year 10889
		"/v1/resources?limit=x":                                   "400 limit",
		"/v1/stats?x=1":                                           "400 x: unknown parameter",
		"/v1/dead-letters?reason=other":                           "400 reason: must be one of",
		"/v1/dead-letters?after=-1":                               "400 after",
		"/v1/nothing":                                             "404 unknown_path",
		"/v1/availability?resource_id=shoes" + manySlots:          "200",
		"/v1/availability?resource_id=shoes&slot=A" + manySlots:   "400 slot",
	} {
		status, body := worker.get(t, path)
		if code, text, _ := strings.Cut(want, " "); strconv.Itoa(status) != code || !strings.Contains(body, text) {
			t.Errorf("GET %s: %d %s, want %s", path, status, body, want)
		}
	}
	b := newBrowser(t, worker)
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut} {
		response, _ := b.do(method, "/v1/stats", nil)
		if response.StatusCode != http.StatusMethodNotAllowed || response.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %s", method, response.Status)
		}
	}
	if response, _ := b.do(http.MethodHead, "/v1/stats", nil); response.StatusCode != http.StatusOK {
		t.Errorf("HEAD: %s", response.Status)
	}
}

const zeros = "00000000000000000000000000000000"

// TestAPIToken_OwnAddress_IsRequired serves /v1 on an address of its own with a token, which changes
// while the worker runs.
func TestAPIToken_OwnAddress_IsRequired(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	file := fileOf(t, "token", "first-token-of-this-test\n")
	worker := s.startWorker("HOLDFAST_API_ADDR=127.0.0.1:0", "HOLDFAST_API_TOKEN_FILE="+file)
	found := regexp.MustCompile(`"api_addr":"([^"]+)"`).FindStringSubmatch(worker.log.String())
	if found == nil {
		t.Fatal("the address of /v1 is not logged")
	}
	api, operations := newBrowser(t, worker), newBrowser(t, worker)
	api.base = "http://" + found[1]
	status := func(path, token string, headers ...string) int {
		response, _ := api.do(http.MethodGet, path, nil, append(headers, "Authorization", "Bearer "+token)...)
		return response.StatusCode
	}
	check := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	const stats = "/v1/stats"
	response, _ := api.do(http.MethodGet, stats, nil)
	check("no token", response.StatusCode, http.StatusUnauthorized)
	if !strings.HasPrefix(response.Header.Get("WWW-Authenticate"), "Bearer") {
		t.Errorf("401 has the header %v", response.Header)
	}
	check("another token", status(stats, "second-token-of-this-test"), http.StatusUnauthorized)
	check("the token", status(stats, "first-token-of-this-test"), http.StatusOK)
	stacktest.Must(t, os.WriteFile(file, []byte("second-token-of-this-test\n"), 0o600))
	check("the old token", status(stats, "first-token-of-this-test"), http.StatusUnauthorized)
	check("the new token", status(stats, "second-token-of-this-test"), http.StatusOK)
	other := fileOf(t, "other", "another-token-of-this-test\n")
	if _, out := execute(t.Context(), "top", "--once", "--api-addr", found[1], "--api-token-file", other); !strings.Contains(
		out, "it is not that of this worker") {
		t.Errorf("worker top with another token: %s", out)
	}
	check("the token, by another name, of a proxy", status(stats, "second-token-of-this-test", "Host", "holdfast.example"),
		http.StatusOK)
	check("/healthz on the address of /v1", status("/healthz", "second-token-of-this-test"), http.StatusNotFound)
	stacktest.Must(t, os.Remove(file))
	for range 5 {
		check("no token file", status(stats, "second-token-of-this-test"), http.StatusServiceUnavailable)
	}
	if logged := strings.Count(worker.log.String(), "api token unreadable"); logged != 1 {
		t.Errorf("the missing file is logged %d times in 5 requests, want 1", logged)
	}
	for path, want := range map[string]int{stats: http.StatusNotFound, "/healthz": http.StatusOK, "/metrics": http.StatusOK} {
		response, _ := operations.do(http.MethodGet, path, nil)
		check(path+" on the operations address", response.StatusCode, want)
	}
}

// TestLocal_OtherHost_IsRefusedWithoutToken sends requests to another name. A token, or the header of a proxy, says who
// may use a worker, and beyond loopback it has other names.
func TestLocal_OtherHost_IsRefusedWithoutToken(t *testing.T) {
	t.Parallel()
	local, open := &net.TCPAddr{IP: net.IPv6loopback}, &net.TCPAddr{IP: net.IPv6unspecified}
	guard := token.New(func() ([]byte, error) { return []byte("a-token-of-this-test"), nil }, zerolog.Nop())
	for what, c := range map[string]struct {
		operations, api *net.TCPAddr
		token           *token.Guard
		user            string
		refused         bool
	}{
		"loopback":                     {local, nil, nil, "", true},
		"own address on loopback":      {open, local, nil, "", true},
		"with a token":                 {local, nil, guard, "", false},
		"behind a proxy with a header": {local, nil, nil, "X-User", false},
		"beyond loopback":              {open, nil, nil, "", false},
		"own address beyond loopback":  {local, open, nil, "", false},
	} {
		s := &server{listeners: listeners{operations: atAddr{addr: c.operations}, apiHost: "till-7"}, token: c.token, api: API{ConsoleUser: c.user}}
		if c.api != nil {
			s.listeners.api = atAddr{addr: c.api}
		}
		handler := s.local(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for host, refused := range map[string]bool{"evil.example": c.refused, "localhost:8080": false, "127.0.0.1": false, "till-7:8080": false} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/stats", nil)
			r.Host = host
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); (w.Code == http.StatusMisdirectedRequest) != refused {
				t.Errorf("%s: Host %s: status %d", what, host, w.Code)
			}
		}
	}
}

// atAddr is a listener of which only the address is used.
type atAddr struct {
	net.Listener
	addr net.Addr
}

func (l atAddr) Addr() net.Addr { return l.addr }

// TestListenAPI_BeyondLoopback_NeedsToken checks which settings a worker refuses at its start.
func TestListenAPI_BeyondLoopback_NeedsToken(t *testing.T) {
	t.Parallel()
	file, short := fileOf(t, "token", "a-token-of-sixteen-bytes"), fileOf(t, "short", "short\n")
	two := fileOf(t, "two", "a-token-of-sixteen-bytes\nanother-of-sixteen-bytes\n")
	for _, c := range []struct {
		http string
		api  API
		want string // a part of the error, "" for none
	}{
		{"127.0.0.1:0", API{}, ""},
		{"0.0.0.0:0", API{}, "--api-token-file"},
		{"0.0.0.0:0", API{APIInsecure: true}, ""},
		{"0.0.0.0:0", API{APITokenFile: file}, ""},
		{"0.0.0.0:0", API{APIAddr: "127.0.0.1:0"}, ""},
		{"127.0.0.1:0", API{APIAddr: "0.0.0.0:0"}, "--api-addr"},
		{"127.0.0.1:0", API{APIAddr: "0.0.0.0:0", APITokenFile: file}, ""},
		{"127.0.0.1:0", API{APITokenFile: file + "-missing"}, "--api-token-file"},
		{"127.0.0.1:0", API{APITokenFile: short}, "at least 16"},
		{"127.0.0.1:0", API{APITokenFile: two}, "want one line"},
		{"127.0.0.1:0", API{ConsoleUser: "X-Forwarded-User"}, ""},
		{"127.0.0.1:0", API{ConsoleUser: "Authorization"}, "--console-user-header"},
		{"127.0.0.1:0", API{ConsoleUser: "cookie"}, "--console-user-header"},
		{"127.0.0.1:0", API{ConsoleUser: "Host"}, "--console-user-header"},
		{"127.0.0.1:0", API{ConsoleUser: "X User"}, "--console-user-header"},
	} {
		operations, err := net.Listen("tcp", c.http)
		stacktest.Must(t, err)
		all, err := c.api.listenAPI(operations)
		all.close()
		_ = operations.Close()
		var refusal string
		if err != nil {
			refusal = err.Error()
		}
		if (c.want == "") != (err == nil) || !strings.Contains(refusal, c.want) {
			t.Errorf("%s %+v: %v, want an error with %q", c.http, c.api, err, c.want)
		}
	}
}

// TestListenAPI_SameAddress_OneServesAll gives the address of the operations for the API too, in several forms.
func TestListenAPI_SameAddress_OneServesAll(t *testing.T) {
	t.Parallel()
	for at, forms := range map[string][]string{
		"127.0.0.1:0": {"127.0.0.1", "localhost"}, ":0": {"", "0.0.0.0", "::"}, "0.0.0.0:0": {"0.0.0.0", ""},
	} {
		operations, err := net.Listen("tcp", at)
		stacktest.Must(t, err)
		_, port, err := net.SplitHostPort(operations.Addr().String())
		stacktest.Must(t, err)
		for _, host := range forms {
			api := API{APIAddr: net.JoinHostPort(host, port), APIInsecure: true}
			if all, err := api.listenAPI(operations); err != nil || all.api != nil {
				t.Errorf("%s beside %s: %v, %v", api.APIAddr, operations.Addr(), all.api, err)
			}
		}
		_ = operations.Close()
	}
	if l, err := listenOn("--http-addr", ""); !strings.Contains(fmt.Sprint(err), "--http-addr is empty") {
		t.Errorf("an empty address opens %v, %v", l, err)
	}
}

// TestListen_AddressInUse_NamesSettingAndRemedy opens an address that is in use. Only worker dev, which is near,
// takes a free port instead.
func TestListen_AddressInUse_NamesSettingAndRemedy(t *testing.T) {
	t.Parallel()
	used, err := net.Listen("tcp", "127.0.0.1:0")
	stacktest.Must(t, err)
	defer func() { _ = used.Close() }()
	for setting, o := range map[string]Operations{
		"--http-addr": {HTTPAddr: used.Addr().String()},
		"--api-addr":  {HTTPAddr: "127.0.0.1:0", API: API{APIAddr: used.Addr().String()}},
	} {
		c := Config{Operations: o}
		all, err := c.listen(false)
		if err == nil || !strings.HasPrefix(err.Error(), setting+": ") || !strings.Contains(err.Error(), "give another address") {
			t.Errorf("%s in use: %v", setting, err)
		}
		all.close()
	}
	for _, malformed := range []string{"foo", ":99999"} {
		c := Config{Operations: Operations{HTTPAddr: malformed}}
		all, err := c.listen(false)
		var usage *usageError
		if !errors.As(err, &usage) {
			t.Errorf("%s: %v, want a usage error", malformed, err)
		}
		all.close()
	}
	c := Config{Operations: Operations{HTTPAddr: used.Addr().String()}}
	all, err := c.listen(true)
	if err != nil || c.HTTPAddr == used.Addr().String() {
		t.Errorf("worker dev listens on %s: %v", c.HTTPAddr, err)
	}
	all.close()
	c = Config{Operations: Operations{HTTPAddr: "127.0.0.1:0", API: API{APIAddr: "localhost:0"}}}
	if all, err = c.listen(false); err != nil || all.apiHost != "localhost" {
		t.Errorf("/v1 is served as %q: %v", all.apiHost, err)
	}
	all.close()
}

// TestQueryService_OperatorsQueries_AnswerLikeHTTP sends by NATS the queries that publisher sends.
func TestQueryService_OperatorsQueries_AnswerLikeHTTP(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("hall", seat, 1)
	text := s.answer(s.book("hall", "ana", "k1", seat, 3600)).Subject
	id, err := holds.ParseHoldID(text)
	stacktest.Must(t, err)
	ctx := t.Context()
	for _, reveal := range []bool{false, true} {
		user := ""
		if reveal {
			user = "ana"
		}
		query := client.HoldQuery{HoldID: id, Reveal: reveal, Who: "eve@desk"}
		shown, _, err := client.Ask[holds.HoldView](ctx, s.client, queries.EndpointHold, query)
		if err != nil || shown.HoldID != id || shown.UserID != user {
			t.Errorf("hold: %+v %v, want the user %q", shown, err, user)
		}
		page, _, err := client.Ask[queries.HoldsPage](ctx, s.client, queries.EndpointHolds, client.HoldsQuery{
			HoldsQuery: queries.HoldsQuery{ResourceID: "hall", Limit: 5, Reveal: reveal}, Who: "eve@desk",
		})
		if err != nil || len(page.Holds) != 1 || page.Holds[0].UserID != user {
			t.Errorf("holds: %+v %v, want the user %q", page, err, user)
		}
		history, body, err := client.Ask[queries.History](ctx, s.client, queries.EndpointHistory, query)
		if err != nil || len(history.Entries) != 2 || strings.Contains(string(body), "ana") != reveal {
			t.Errorf("history: %s %v", body, err)
		}
	}
	if n := strings.Count(worker.log.String(), `"who":"eve@desk"`); n != 3 {
		t.Errorf("%d revelations are logged, want 3", n)
	}
	resources, _, err := client.Ask[queries.ResourcesPage](ctx, s.client, queries.EndpointResources,
		queries.ResourcesQuery{Prefix: "h", Limit: 5})
	if err != nil || len(resources.Resources) != 1 || resources.Resources[0].LiveHolds != 1 {
		t.Errorf("resources: %+v %v", resources, err)
	}
	_, _, err = client.Ask[queries.HoldsPage](ctx, s.client, queries.EndpointHolds, client.HoldsQuery{
		HoldsQuery: queries.HoldsQuery{ResourceID: "hall", Limit: 501},
	})
	if refused, is := errors.AsType[*client.RefusedQueryError](err); !is || refused.Status != http.StatusBadRequest {
		t.Errorf("a limit of 501: %v", err)
	}
}
