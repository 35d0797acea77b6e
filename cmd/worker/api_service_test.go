package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/stack/stacktest"
)

// TestService_EveryQuery_AnswersAsHTTP sends the same queries by NATS and by HTTP and compares the
// answers.
func TestService_EveryQuery_AnswersAsHTTP(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("double", holds.SlotSelection{CheckIn: "2027-01-01", CheckOut: "2027-01-03"}, 3)
	s.setInventory("hall", seat, 1)
	s.setInventory("shoes", holds.SlotSelection{}, 5)
	hold := s.answer(s.book("hall", "ana", "k1", seat, 3600))

	const unknownHold = "hall.00000000000000000000000000000000"
	table := []struct{ endpoint, query, path string }{
		{"availability", `{"resource_id":"double","check_in":"2027-01-01","check_out":"2027-01-04"}`,
			"/v1/availability?resource_id=double&check_in=2027-01-01&check_out=2027-01-04"},
		{"availability", `{"resource_id":"hall","slots":["A-12","A-13"]}`,
			"/v1/availability?resource_id=hall&slot=A-12&slot=A-13"},
		{"availability", `{"resource_id":"shoes"}`, "/v1/availability?resource_id=shoes"},
		{"availability", `{}`, "/v1/availability"},
		{"availability", `{"resource_id":"a.b"}`, "/v1/availability?resource_id=a.b"},
		{"availability", `{"resource_id":"double","check_in":"2027-01-01"}`,
			"/v1/availability?resource_id=double&check_in=2027-01-01"},
		{"availability", `{"resource_id":"double","check_in":"2027-01-02","check_out":"2027-01-02"}`,
			"/v1/availability?resource_id=double&check_in=2027-01-02&check_out=2027-01-02"},
		{"availability", `{"resource_id":"double","check_in":"2027-02-30","check_out":"2027-03-02"}`,
			"/v1/availability?resource_id=double&check_in=2027-02-30&check_out=2027-03-02"},
		{"availability", `{"resource_id":"hall","slots":["A-12"],"check_in":"2027-01-01","check_out":"2027-01-02"}`,
			"/v1/availability?resource_id=hall&slot=A-12&check_in=2027-01-01&check_out=2027-01-02"},
		{"availability", `{"resource_id":"hall","slots":["A-12","A-12"]}`,
			"/v1/availability?resource_id=hall&slot=A-12&slot=A-12"},
		{"availability", `{"resource_id":"double","colour":"red"}`, "/v1/availability?resource_id=double&colour=red"},
		{"hold", `{"hold_id":"` + hold.Subject + `"}`, "/v1/holds/" + hold.Subject},
		{"hold", `{"hold_id":"` + unknownHold + `"}`, "/v1/holds/" + unknownHold},
		{"hold", `{"hold_id":"nonsense"}`, "/v1/holds/nonsense"},
	}
	known := map[string]int{`,"known":true`: 0, `,"known":false`: 0} // the member that only NATS has, with its count
	var same func(endpoint, query, path string) (status int)
	same = func(endpoint, query, path string) int {
		t.Helper()
		status, body := worker.get(t, path)
		answer, err := s.nc.Request(s.subjects.Service(endpoint), []byte(query), time.Minute)
		stacktest.Must(t, err)
		if _, later := worker.get(t, path); later != body {
			return same(endpoint, query, path) // the answer changed between the two queries
		}
		text := string(answer.Data)
		for member := range known {
			known[member] += strings.Count(text, member)
			text = strings.ReplaceAll(text, member, "")
		}
		code := answer.Header.Get(micro.ErrorCodeHeader)
		if status == 200 && code != "" || status != 200 && code != strconv.Itoa(status) || strings.TrimSpace(body) != text {
			t.Errorf("%s %s: %s %s\nGET %s: %d %s", endpoint, query, code, answer.Data, path, status, body)
		}
		return status
	}
	statuses := make(map[int]int)
	for _, c := range table {
		statuses[same(c.endpoint, c.query, c.path)]++
	}
	if known[`,"known":true`] != 4 || known[`,"known":false`] != 2 {
		t.Errorf("slots by known: %v", known)
	}
	if statuses[200] != 4 || statuses[400] != 9 || statuses[404] != 1 {
		t.Errorf("statuses %v", statuses)
	}

	// Redis loses its data: both report it.
	stacktest.Must(t, s.redis.Del(t.Context(),
		fmt.Sprintf("%s:{%d}:epoch", s.namespace, record.Partition("hall"))).Err())
	for _, c := range []struct{ endpoint, query, path string }{table[1], table[11]} {
		if status := same(c.endpoint, c.query, c.path); status != 503 {
			t.Errorf("%s after the loss of redis: status %d", c.endpoint, status)
		}
	}
}

// TestService_TwoWorkers_ShareRequests has two workers answer queries while one of them stops.
func TestService_TwoWorkers_ShareRequests(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	first, _ := s.startWorker(), s.startWorker()
	request := func() string {
		t.Helper()
		answer, err := s.nc.Request(s.subjects.Service("availability"), []byte(`{"resource_id":"shoes"}`), time.Minute)
		stacktest.Must(t, err)
		return string(answer.Data)
	}
	answered := func() (counts []int) {
		t.Helper()
		inbox, err := s.nc.SubscribeSync(s.nc.NewInbox())
		stacktest.Must(t, err)
		defer func() { _ = inbox.Unsubscribe() }()
		stacktest.Must(t, s.nc.PublishRequest("$SRV.STATS."+s.namespace, inbox.Subject, nil))
		for range 2 {
			m, err := inbox.NextMsg(time.Second)
			if errors.Is(err, nats.ErrTimeout) {
				return counts // one worker does not listen yet; the caller retries
			}
			stacktest.Must(t, err)
			var stats struct {
				Endpoints []struct {
					Name     string `json:"name"`
					Requests int    `json:"num_requests"`
				} `json:"endpoints"`
			}
			stacktest.Must(t, json.Unmarshal(m.Data, &stats))
			for _, e := range stats.Endpoints {
				if e.Name == "availability" {
					counts = append(counts, e.Requests)
				}
			}
		}
		return counts
	}
	want := `{"resource_id":"shoes","slots":[{"slot":"stock","capacity":0,"reserved":0,"held":0,"available":0,"known":false}]}`
	stacktest.Eventually(t, "both to have answered", func() bool {
		if got := request(); got != want {
			t.Fatalf("answer %s", got)
		}
		counts := answered()
		return len(counts) == 2 && counts[0] > 0 && counts[1] > 0
	})
	stacktest.Must(t, first.cmd.Process.Signal(syscall.SIGTERM))
	for stopped := false; !stopped; {
		if got := request(); got != want && !strings.Contains(got, "this worker is stopping; try again") {
			t.Errorf("while one stops: %s", got)
		}
		select {
		case <-first.exited:
			stopped = true
		default:
		}
	}
	if got := request(); got != want {
		t.Errorf("after one has stopped: %s", got)
	}
}
