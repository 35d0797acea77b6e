package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
)

// The words that no page may show unless private data is revealed.
const (
	canaryUser     = "canary-user"
	canaryMetadata = "canary-metadata"
	canaryPayload  = "canary-payload"
	canaryHeader   = "canary-header"
)

// browser is a client of a console that keeps its cookie, and follows no redirect.
type browser struct {
	t      *testing.T
	base   string
	cookie string
	client http.Client
}

func newBrowser(t *testing.T, worker *process) *browser {
	b := &browser{t: t, base: "http://" + worker.http}
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	b.client.Transport = &http.Transport{DisableKeepAlives: true}
	return b
}

// reply is what a test needs of a response besides its body.
type reply struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// do sends a request and returns the answer and its body.
func (b *browser) do(method, path string, form url.Values, headers ...string) (reply, string) {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(form.Encode()))
	stacktest.Must(b.t, err)
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if b.cookie != "" {
		request.Header.Set("Cookie", b.cookie)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	response, err := b.client.Do(request)
	stacktest.Must(b.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	stacktest.Must(b.t, err)
	for _, c := range response.Cookies() {
		b.cookie = c.Name + "=" + c.Value
	}
	return reply{response.StatusCode, response.Status, response.Header}, string(body)
}

// get returns a page. The test fails unless its status is 200.
func (b *browser) get(path string) string {
	b.t.Helper()
	response, body := b.do(http.MethodGet, path, nil)
	if response.StatusCode != http.StatusOK {
		b.t.Fatalf("GET %s: %s\n%s", path, response.Status, body)
	}
	return body
}

var (
	csrfField      = regexp.MustCompile(`name="csrf" value="([^"]+)"`)
	selectionField = regexp.MustCompile(`name="(selection|hits)" value="([^"]+)"`)
)

// submit sends a form with the token of a page, the fingerprint of its selection or what a capacity hits if it has one, and
// a name where it asks for one.
func (b *browser) submit(page, path string, form url.Values) (reply, string) {
	b.t.Helper()
	found := csrfField.FindStringSubmatch(page)
	if found == nil {
		b.t.Fatalf("the page has no form to act:\n%s", page)
	}
	form.Set("csrf", found[1])
	if found = selectionField.FindStringSubmatch(page); found != nil {
		form.Set(found[1], found[2])
	}
	if strings.Contains(page, `name="who" required`) && !form.Has("who") {
		form.Set("who", "ana")
	}
	return b.do(http.MethodPost, path, form)
}

// consoleTown is a hold, and dead letters with private words everywhere.
func consoleTown(s *harness) (hold string) {
	s.setInventory("hall", seat, 1)
	s.setInventory("double", holds.SlotSelection{CheckIn: "2027-05-01", CheckOut: "2027-05-04"}, 3)
	data := bookingData("hall", canaryUser, "k1", seat, 3600)
	data.Metadata = []byte(`{"cart":"` + canaryMetadata + `"}`)
	hold = s.answer(s.publish(events.BookingRequested, "hall", data)).Subject
	for n := range 3 {
		s.awaitDeadLetter(s.publish(events.BookingRequested, "hall", map[string]any{
			"request_key": fmt.Sprint("d", n), "user_id": canaryUser, "resource_id": "hall", "quantity": canaryPayload,
			"metadata": map[string]any{canaryMetadata: canaryPayload},
		}))
	}
	return hold
}

// TestConsole_EveryScreen_HidesPrivateData requests every screen: headers, bounds, and no private
// word until it is revealed, which is logged.
func TestConsole_EveryScreen_HidesPrivateData(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startActing()
	hold := consoleTown(s)
	s.awaitDeadLetter(s.publish(events.BookingRequested, "hall", map[string]any{"quantity": canaryPayload},
		"X-Customer", canaryHeader, "Traceparent", "shown-trace"))
	b := newBrowser(t, worker)
	b.get("/console/")
	screens := map[string]string{ // path: what it shows
		"/console/": "Dead letters by reason", "/console/availability?from=2027-05-01&days=14": ">3</td>", "/console/availability/hall": "A-12",
		"/console/availability/hall?slot=A-12": "hold.created", "/console/holds": hold, "/console/holds?resource_id=hall&state=held": hold,
		"/console/holds/" + hold: "booking.requested", "/console/holds/" + hold + "?paid=now": "would confirm",
		"/console/dead-letters": "data.quantity: must be an integer", "/console/dead-letters/list?reason=malformed&since=1h": "data.quantity",
		"/console/dead-letters/1": "faulty", "/console/dead-letters/4": "shown-trace", "/console/dead-letters/1?dry=run": "still malformed", "/console/dead-letters/confirm?verb=replay": "still malformed",
		"/console/dead-letters/1/edit": "must be revealed", "/console/runs": "no runs yet", "/console/lateness": "worker locks", "/console/runbook": "HoldfastDeadLetters",
		"/console/inventory?resource_id=hall&slots=A-12&capacity=0":         "1 held or reserved beyond",
		"/console/inventory?resource_id=hall&slots=A-12%2C+A-13&capacity=0": "--slot A-12,A-13 --capacity 0",
	}
	for path, want := range screens {
		response, body := b.do(http.MethodGet, path, nil)
		if response.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %s, without %q:\n%s", path, response.Status, want, body)
		}
		if len(body) > 100<<10 {
			t.Errorf("%s has %d bytes", path, len(body))
		}
		for _, canary := range []string{canaryUser, canaryMetadata, canaryPayload, canaryHeader} {
			if strings.Contains(body, canary) {
				t.Errorf("%s shows %s", path, canary)
			}
		}
		if strings.Contains(body, "style=") || strings.Contains(body, "<script>") || strings.Contains(body, " onclick") {
			t.Errorf("%s has inline script or style", path)
		}
		for name, value := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		} {
			if !strings.Contains(response.Header.Get(name), value) {
				t.Errorf("%s: header %s is %q", path, name, response.Header.Get(name))
			}
		}
	}
	if strings.Contains(worker.log.String(), "private data revealed") {
		t.Error("a reveal was logged before there was one")
	}
	for path, canary := range map[string]string{
		"/console/holds?resource_id=hall&reveal=true": canaryUser, "/console/holds/" + hold + "?reveal=true": canaryMetadata,
		"/console/dead-letters/1?reveal=true": canaryPayload, "/console/dead-letters/list?reveal=true": canaryUser, "/console/dead-letters/4?reveal=true": canaryHeader,
		"/console/dead-letters/2/edit?reveal=true": canaryPayload, "/console/availability/hall?reveal=true": canaryUser,
	} {
		if !strings.Contains(b.get(path), canary) {
			t.Errorf("%s does not reveal %s", path, canary)
		}
		what, _, _ := strings.Cut(path, "?")
		worker.eventually(t, "the reveal of "+what+" in the log", func() bool {
			return strings.Contains(worker.log.String(), `"what":"`+what+`","who":"console@127.0.0.1","via":"console"`)
		})
	}
	for path, status := range map[string]int{
		"/console/nothing": 404, "/console/dead-letters/999": 404, "/console/holds/nonsense": 400, "/console/holds/hall.00000000000000000000000000000000": 404,
		"/console/runs/x": 400, "/console/availability?days=900": 400, "/console/holds?resource_id=a.b": 400, "/console/dead-letters/list?since=x": 400,
	} {
		if response, body := b.do(http.MethodGet, path, nil); response.StatusCode != status || !strings.Contains(body, `role="alert"`) {
			t.Errorf("%s: %s, want %d", path, response.Status, status)
		}
	}
}

// TestConsole_ReadMode_SignsInAndOnlyReads signs in with the token, and tries to act.
func TestConsole_ReadMode_SignsInAndOnlyReads(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	file := fileOf(t, "token", "a-long-secret-token\n")
	worker := s.startWorker("HOLDFAST_CONSOLE=read", "HOLDFAST_API_TOKEN_FILE="+file)
	b := newBrowser(t, worker)
	if response, _ := b.do(http.MethodGet, "/console/runs?a=b", nil); response.StatusCode != http.StatusSeeOther ||
		response.Header.Get("Location") != "/console/sign-in?to=%2Fconsole%2Fruns%3Fa%3Db" {
		t.Errorf("without a session: %s to %s", response.Status, response.Header.Get("Location"))
	}
	if !strings.Contains(b.get("/console/sign-in"), `type="password"`) {
		t.Error("there is no form to sign in")
	}
	wrong := url.Values{"name": {"ana"}, "token": {"another-secret-token"}}
	if response, body := b.do(http.MethodPost, "/console/sign-in", wrong); response.StatusCode != http.StatusUnauthorized ||
		b.cookie != "" || strings.Contains(body, "another-secret") {
		t.Errorf("with another token: %s, cookie %q", response.Status, b.cookie)
	}
	right := url.Values{"name": {"ana"}, "token": {"a-long-secret-token"}, "to": {"//evil.example"}}
	response, _ := b.do(http.MethodPost, "/console/sign-in", right)
	set := response.Header.Get("Set-Cookie")
	if response.StatusCode != http.StatusSeeOther || response.Header.Get("Location") != "/console/" ||
		!strings.Contains(set, "HttpOnly") || !strings.Contains(set, "SameSite=Strict") || !strings.Contains(set, "Path=/console/") {
		t.Errorf("sign-in: %s, %q", response.Status, set)
	}
	if page := b.get("/console/"); !strings.Contains(page, "ana") || !strings.Contains(page, "This console only reads") {
		t.Errorf("the overview after the sign-in:\n%s", page)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		for _, path := range []string{"/console/dead-letters/discard", "/console/inventory", "/console/runs/x/cancel", "/console/"} {
			if response, _ := b.do(method, path, url.Values{}); response.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %s", method, path, response.Status)
			}
		}
	}
	if response, _ := b.do(http.MethodHead, "/console/", nil); response.StatusCode != http.StatusOK {
		t.Errorf("HEAD /console/: %s", response.Status)
	}
	good := b.cookie
	for _, bad := range []string{good + "x", strings.Replace(good, "=", "=x", 1), "holdfast_console=."} {
		b.cookie = bad
		if response, _ := b.do(http.MethodGet, "/console/", nil); response.StatusCode != http.StatusSeeOther {
			t.Errorf("with a changed cookie: %s", response.Status)
		}
	}
	b.cookie = good
	stacktest.Must(t, os.WriteFile(file, []byte("the-next-secret-token\n"), 0o600))
	if response, _ := b.do(http.MethodGet, "/console/", nil); response.StatusCode != http.StatusSeeOther {
		t.Errorf("after the token changed: %s", response.Status)
	}
	b.cookie = ""
	if response, _ := b.do(http.MethodGet, "/console/", nil, "Authorization", "Bearer the-next-secret-token"); response.StatusCode != http.StatusOK {
		t.Errorf("with the token in the header: %s", response.Status)
	}
	if strings.Contains(worker.log.String(), "secret-token") {
		t.Error("the log has a token")
	}
}

// startActing starts a worker whose console acts. On restricted servers its user of NATS gets the
// permissions that deployments/nats/accounts.conf names for it, and does not grant.
func (s *harness) startActing() *process {
	s.t.Helper()
	if s.restricted != nil {
		stacktest.Must(s.t, s.restricted.AllowActing())
	}
	return s.startWorker("HOLDFAST_CONSOLE=act")
}

// TestConsole_LeastPrivileges_Acts replays, edits and discards as users with least privileges.
func TestConsole_LeastPrivileges_Acts(t *testing.T) {
	t.Parallel()
	actOnDeadLetters(t, newRestrictedHarness(t))
}

// TestConsole_ActsWithoutPermissions_SaysWhichFileNamesThem lets a console act whose user of NATS may not record a run.
func TestConsole_ActsWithoutPermissions_SaysWhichFileNamesThem(t *testing.T) {
	t.Parallel()
	s := newRestrictedHarness(t)
	worker := launch(t, true, s.runArgs(), "HOLDFAST_CONSOLE=act")
	worker.awaitStarted(t)
	b := newBrowser(t, worker)
	consoleTown(s)
	token := csrfField.FindStringSubmatch(b.get("/console/dead-letters/confirm?verb=discard&seq=1"))[1]
	form := url.Values{"seq": {"1"}, "count": {"1"}, "note": {"x"}, "who": {"ana"}, "csrf": {token}}
	if response, body := b.do(http.MethodPost, "/console/dead-letters/discard", form); response.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(body, "accounts.conf") {
		t.Errorf("%s\n%s", response.Status, body)
	}
}

// TestConsole_ForgedRequests_AreRefused sends what a page of another site could send.
func TestConsole_ForgedRequests_AreRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startActing()
	consoleTown(s)
	b := newBrowser(t, worker)
	page := b.get("/console/dead-letters/confirm?verb=discard&seq=1")
	token := csrfField.FindStringSubmatch(page)[1]
	form := url.Values{"seq": {"1"}, "count": {"1"}, "note": {"x"}, "who": {"ana"}, "csrf": {token}}
	without := url.Values{"seq": {"1"}, "count": {"1"}, "note": {"x"}, "who": {"ana"}}
	for what, c := range map[string]struct {
		form    url.Values
		headers []string
		status  int
	}{
		"without the token of the form": {without, nil, http.StatusForbidden},
		"from another site":             {form, []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"from another origin":           {form, []string{"Origin", "https://evil.example"}, http.StatusForbidden},
		"to another name":               {form, []string{"Host", "evil.example"}, http.StatusMisdirectedRequest},
		"without the cookie":            {form, []string{"Cookie", "a=b"}, http.StatusForbidden},
	} {
		cookie := b.cookie
		if response, body := b.do(http.MethodPost, "/console/dead-letters/discard", c.form, c.headers...); response.StatusCode != c.status {
			t.Errorf("%s: %s\n%s", what, response.Status, body)
		}
		b.cookie = cookie
	}
	runs, _, err := s.client.ListRuns(t.Context())
	if err != nil || len(runs) != 0 {
		t.Errorf("%d runs, %v", len(runs), err)
	}
	if response, body := b.do(http.MethodPost, "/console/dead-letters/discard", form); response.StatusCode != http.StatusSeeOther {
		t.Errorf("the form itself: %s\n%s", response.Status, body)
	}
}

// TestConsole_WrongInput_IsRefused mistypes the number of dead letters in a form with other choices than the default,
// which must stay, and asks for pages with parameters that no page has.
func TestConsole_WrongInput_IsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startActing()
	consoleTown(s)
	b := newBrowser(t, worker)
	page := b.get("/console/dead-letters/confirm?verb=replay&reason=malformed")
	response, body := b.submit(page, "/console/dead-letters/replay", url.Values{
		"reason": {"malformed"}, "note": {"why"}, "who": {"ana"}, "rate": {"1"}, "keep": {"true"}, "count": {"4"},
	})
	for _, want := range []string{"Type the number of dead letters, which is now 3", `max="10000" value="1"`, `name="keep" value="true" checked`} {
		if response.StatusCode != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s, without %s", response.Status, want)
		}
	}
	for _, path := range []string{
		"availability/hall?after=%00", "availability/hall?after=%ff", "dead-letters/list?reason=a%20b", "dead-letters/list?reason=%00",
		"dead-letters/confirm?verb=discard&reason=a%20b", "holds?resource_id=%00", "holds?resource_id=hall&after=%00", "holds?within=5",
		"holds?within=-5m", "dead-letters/list?since=9999999d",
	} {
		if response, _ := b.do(http.MethodGet, "/console/"+path, nil); response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}

// TestConsole_DeadLetters_AreReplayedEditedAndDiscarded works on dead letters as an operator does.
// Each action is a recorded run.
func TestConsole_DeadLetters_AreReplayedEditedAndDiscarded(t *testing.T) {
	t.Parallel()
	actOnDeadLetters(t, newHarness(t))
}

func actOnDeadLetters(t *testing.T, s *harness) {
	worker := s.startActing()
	consoleTown(s)
	b := newBrowser(t, worker)
	done := func(response reply, body string) *client.Run {
		t.Helper()
		at := response.Header.Get("Location")
		if response.StatusCode != http.StatusSeeOther {
			t.Fatalf("%s\n%s", response.Status, body)
		}
		id := at[strings.LastIndexByte(at, '/')+1:]
		var run *client.Run
		worker.eventually(t, "the end of run "+id, func() bool {
			b.get(at)
			var err error
			run, err = s.client.GetRun(t.Context(), id)
			return err == nil && run.State != client.RunUnfinished
		})
		return run
	}
	page := b.get("/console/dead-letters/confirm?verb=replay&seq=1")
	form := url.Values{"seq": {"1"}, "note": {"a reason"}, "who": {"ana"}, "count": {"2"}}
	if _, body := b.submit(page, "/console/dead-letters/replay", form); !strings.Contains(body, "which is now 1") {
		t.Errorf("a wrong number was accepted:\n%s", body)
	}
	form.Set("count", "1")
	run := done(b.submit(page, "/console/dead-letters/replay", form))
	if run.Operator != "ana@127.0.0.1" || run.Note != "a reason" || run.Counts[client.ReplayDeadLettered] != 1 {
		t.Errorf("replay: %+v", run)
	}
	for note, status := range map[string]int{"": http.StatusConflict, "again": http.StatusBadRequest} {
		form := url.Values{"who": {"eve"}, "note": {note}}
		if response, body := b.submit(page, "/console/runs/"+run.ID+"/resume", form); response.StatusCode != status {
			t.Errorf("resume of a run that is done, with the note %q: %s\n%s", note, response.Status, body)
		}
	}
	page = b.get("/console/dead-letters/2/edit?reveal=true")
	edited := `{"specversion":"1.0","id":"e1","source":"/test","type":"holdfast.booking.requested.v1","data":{"request_key":"e1",` +
		`"user_id":"eve","resource_id":"double","check_in":"2027-05-01","check_out":"2027-05-02","quantity":1}}`
	form = url.Values{"body": {`{"a": 1}`}, "subject": {s.subjects.In(events.BookingRequested, "double")}, "note": {"corrected"}}
	if _, body := b.submit(page, "/console/dead-letters/2/edit", form); !strings.Contains(body, "would be dead-lettered again") {
		t.Errorf("a malformed event was accepted:\n%s", body)
	}
	form.Set("body", edited)
	if run = done(b.submit(page, "/console/dead-letters/2/edit", form)); run.Verb != client.RunEdit || run.Counts[holds.EventHoldCreated] != 1 {
		t.Errorf("edit: %+v", run)
	}
	page = b.get("/console/dead-letters/confirm?verb=discard&reason=malformed")
	form = url.Values{"reason": {"malformed"}, "note": {"tests"}, "count": {"3"}}
	if run = done(b.submit(page, "/console/dead-letters/discard", form)); run.Counts[client.Discarded] != 3 || run.Filter == nil {
		t.Errorf("discard: %+v", run)
	}
	page = b.get("/console/inventory?resource_id=double&check_in=2027-05-01&check_out=2027-05-02&capacity=0")
	if !strings.Contains(page, "1 held or reserved beyond the new capacity") {
		t.Errorf("the preview of a cut:\n%s", page)
	}
	form = url.Values{"resource_id": {"double"}, "check_in": {"2027-05-01"}, "check_out": {"2027-05-02"}, "capacity": {"7"}, "note": {"renovated"}}
	if _, body := b.submit(page, "/console/inventory", form); !strings.Contains(body, "inventory.updated") {
		t.Errorf("the capacity was not set:\n%s", body)
	}
	for _, want := range []string{
		`"verb":"replay","what":"/console/dead-letters/replay","who":"ana@127.0.0.1","note":"a reason"`, `"verb":"edit"`, `"verb":"discard"`, `"verb":"inventory.set double"`, `"note":"renovated"`,
	} {
		if !strings.Contains(worker.log.String(), want) {
			t.Errorf("the log has no %s", want)
		}
	}
}

// TestConsole_StreamCreatedAgain_FormsAreRefused opens the forms of a dead letter, deletes its stream and creates it again with
// another one under the same sequence, and then confirms.
func TestConsole_StreamCreatedAgain_FormsAreRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	b := newBrowser(t, s.startActing())
	s.storeDeadLetter("chosen", nil)
	stream := regexp.MustCompile(`name="stream" value="([^"]+)"`)
	const screens = "/console/dead-letters/"
	list, confirm, edit := b.get(screens+"list"), b.get(screens+"confirm?verb=discard&seq=1"), b.get(screens+"1/edit?reveal=true")
	shown := func(page string) string { return stream.FindStringSubmatch(page)[1] }
	links := html.UnescapeString(b.get(screens + "1"))
	for _, address := range []string{"confirm?seq=1&stream=", "1/edit?reveal=true&stream="} {
		if !strings.Contains(links, address+url.QueryEscape(shown(list))) {
			t.Errorf("no link to %s with the stream", address)
		}
	}
	stacktest.RecreateStream(t, s.js, s.subjects.DLQStream())
	s.storeDeadLetter("never seen", nil)
	wantRefused := func(response reply, body string) {
		t.Helper()
		if response.StatusCode != http.StatusConflict || !strings.Contains(body, "created again") {
			t.Errorf("%s\n%s", response.Status, body)
		}
	}
	chosen := url.Values{"seq": {"1"}, "stream": {shown(list)}, "verb": {"discard"}}
	wantRefused(b.do(http.MethodGet, screens+"confirm?"+chosen.Encode(), nil))
	wantRefused(b.submit(confirm, screens+"discard",
		url.Values{"seq": {"1"}, "stream": {shown(confirm)}, "note": {"why"}, "count": {"1"}}))
	wantRefused(b.submit(edit, screens+"1/edit", url.Values{
		"stream": {shown(edit)}, "note": {"why"}, "subject": {s.subjects.In(events.BookingRequested, "double")}, "body": {completeRequest},
	}))
}

// TestConsole_SelectionChanged_IsRefused opens the forms for all dead letters that match. Before they are sent, one is removed
// and another one is stored, so that the number is the same. Only the page that shows the new selection confirms it.
func TestConsole_SelectionChanged_IsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	b := newBrowser(t, s.startActing())
	s.storeDeadLetter("chosen", nil)
	s.storeDeadLetter("removed", nil)
	const screens = "/console/dead-letters/"
	form := url.Values{"reason": {"malformed"}, "since": {"1h"}, "note": {"why"}, "count": {"2"}}
	verbs, pages := []string{client.RunReplay, client.RunDiscard}, make(map[string]string)
	for _, verb := range verbs {
		pages[verb] = b.get(screens + "confirm?reason=malformed&since=1h&verb=" + verb)
	}
	stored, err := s.client.DeadLetters(t.Context())
	stacktest.Must(t, err)
	stacktest.Must(t, stored.Remove(t.Context(), 2))
	s.storeDeadLetter("never seen", nil)
	for _, verb := range verbs {
		response, body := b.submit(pages[verb], screens+verb, form)
		if response.StatusCode != http.StatusOK || !strings.Contains(body, "The selection has changed") {
			t.Errorf("%s: %s\n%s", verb, response.Status, body)
		}
		pages[verb] = body
	}
	if runs, _, err := s.client.ListRuns(t.Context()); err != nil || len(runs) != 0 {
		t.Errorf("%d runs, %v", len(runs), err)
	}
	response, body := b.submit(pages[client.RunDiscard], screens+client.RunDiscard, form)
	if response.StatusCode != http.StatusSeeOther {
		t.Errorf("the selection that was shown: %s\n%s", response.Status, body)
	}
}

// TestConsole_CapacityHitsMore_IsRefused asks what a cut hits. Before it is confirmed, a customer holds, or the capacity
// is set by another one. Only the page that shows this confirms the cut, and one that hits less by then. The reason need
// not be typed again.
func TestConsole_CapacityHitsMore_IsRefused(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	b := newBrowser(t, s.startActing())
	s.setInventory("hall", seat, 5)
	const screen = "/console/inventory"
	form := url.Values{"resource_id": {"hall"}, "slots": {seat.Slots[0]}, "capacity": {"1"}, "note": {"cut"}}
	refused, page := "What the capacity hits has changed. Nothing was done", b.get(screen+"?resource_id=hall&slots=A-12&capacity=1")
	want := func(what, text string) {
		t.Helper()
		_, page = b.submit(page, screen, form)
		if !strings.Contains(page, text) || text == refused && strings.Contains(page, "inventory.updated") {
			t.Errorf("%s: no %q:\n%s", what, text, page)
		}
		if kept := strings.Contains(page, `name="note" required maxlength="500" value="cut"`); kept != (text == refused) {
			t.Errorf("%s: the form keeps the reason: %v", what, kept)
		}
	}
	var held []string
	hold := func() {
		key := fmt.Sprint("user", len(held))
		held = append(held, s.wantAnswer(s.book("hall", key, key, seat, 3600), holds.EventHoldCreated).Subject)
	}
	hold()
	hold()
	want("a hold more than fit", refused)
	if !strings.Contains(page, "1 held or reserved beyond the new capacity") {
		t.Errorf("the new preview:\n%s", page)
	}
	s.setInventory("hall", seat, 4)
	want("another capacity", refused)
	hold()
	want("another hold", refused)
	s.answer(s.publish(events.BookingCancelled, "hall", events.BookingCancelledData{HoldID: held[0]}))
	want("a hold less", "inventory.updated")
}

// storeDeadLetter stores a dead letter of a request on double, with further headers.
func (s *harness) storeDeadLetter(body string, headers nats.Header) {
	s.t.Helper()
	m := nats.NewMsg(s.subjects.DLQ(events.ReasonMalformed))
	m.Data = []byte(body)
	maps.Copy(m.Header, headers)
	m.Header.Set(events.HeaderDLQSubject, s.subjects.In(events.BookingRequested, "double"))
	if _, err := s.js.PublishMsg(s.t.Context(), m); err != nil {
		s.t.Fatal(err)
	}
}

// completeRequest is the body of a request on double that a worker accepts.
const completeRequest = `{"specversion":"1.0","id":"e1","source":"/test","type":"holdfast.booking.requested.v1",` +
	`"data":{"request_key":"e1","user_id":"eve","resource_id":"double","quantity":1}}`

// TestConsole_UnusualDeadLetters_SayWhatIsPossible edits a dead letter whose event has no body, one whose event no longer
// exists, and one whose body is not UTF-8, and shows what a replay does to one that was replayed often.
func TestConsole_UnusualDeadLetters_SayWhatIsPossible(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	b := newBrowser(t, s.startActing())
	for _, more := range []nats.Header{nil, {
		events.HeaderClaimCheckStream: {s.subjects.InStream()}, events.HeaderClaimCheckSeq: {"9"}, events.HeaderClaimCheckSHA256: {"00"},
	}, {events.HeaderDLQReplays: {"3"}}, {"X-Body": {"\xff"}}} {
		s.storeDeadLetter(more.Get("X-Body"), more)
	}
	page := b.get("/console/dead-letters/1/edit?reveal=true")
	form := url.Values{
		"subject": {s.subjects.In(events.BookingRequested, "double")}, "note": {"completed"}, "who": {"ana"},
		"body": {completeRequest},
	}
	if response, body := b.submit(page, "/console/dead-letters/1/edit", form); response.StatusCode != http.StatusSeeOther {
		t.Errorf("the event without a body: %s\n%s", response.Status, body)
	}
	if response, body := b.do(http.MethodGet, "/console/dead-letters/2/edit?reveal=true", nil); response.StatusCode != http.StatusConflict ||
		!strings.Contains(body, "is gone") {
		t.Errorf("the event that is gone: %s\n%s", response.Status, body)
	}
	if page := b.get("/console/dead-letters/4/edit?reveal=true"); !strings.Contains(page, "not UTF-8") || !strings.Contains(page, "required></textarea>") {
		t.Errorf("the event that is not UTF-8:\n%s", page)
	}
	for choice, skips := range map[string]bool{"reason=malformed": true, "seq=3": false} {
		page := b.get("/console/dead-letters/confirm?verb=replay&" + choice)
		if strings.Contains(page, "dead-lettered again after 3 replays") != skips {
			t.Errorf("the dry run of %s:\n%s", choice, page)
		}
	}
}

// TestConsole_StreamFull_SaysThatNothingIsStored sets a capacity while JetStream refuses every event.
func TestConsole_StreamFull_SaysThatNothingIsStored(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	b := newBrowser(t, s.startActing())
	s.setInventory("hall", seat, 1)
	stream, err := s.js.Stream(t.Context(), s.subjects.InStream())
	stacktest.Must(t, err)
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard = 1, jetstream.DiscardNew
	if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	form := url.Values{"resource_id": {"hall"}, "slots": {seat.Slots[0]}, "capacity": {"2"}, "note": {"more"}}
	response, body := b.submit(b.get("/console/inventory?resource_id=hall&slots=A-12&capacity=2"), "/console/inventory", form)
	if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "The event was not stored; nothing was changed") {
		t.Errorf("%s\n%s", response.Status, body)
	}
}

// TestConsole_CancelledReplay_IsResumed cancels a slow replay, stops the worker, and resumes the run
// on the next one.
func TestConsole_CancelledReplay_IsResumed(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startActing()
	consoleTown(s)
	b := newBrowser(t, worker)
	form := url.Values{"note": {"slow"}, "count": {"3"}, "rate": {"0.1"}}
	response, body := b.submit(b.get("/console/dead-letters/confirm?verb=replay"), "/console/dead-letters/replay", form)
	at := response.Header.Get("Location")
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("%s\n%s", response.Status, body)
	}
	id := at[strings.LastIndexByte(at, '/')+1:]
	page := b.get(at)
	if response, body = b.submit(page, at+"/cancel", url.Values{}); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("cancel: %s\n%s", response.Status, body)
	}
	worker.eventually(t, "the run to stop", func() bool {
		run, err := s.client.GetRun(t.Context(), id)
		return err == nil && run.State == client.RunStopped && run.Processed() < 3
	})
	stream, err := http.Get(b.base + "/console/live") // an open page must not delay the stop
	stacktest.Must(t, err)
	defer func() { _ = stream.Body.Close() }()
	if line, err := bufio.NewReader(stream.Body).ReadString('\n'); err != nil || line != "event: body\n" {
		t.Fatalf("live page: %q, %v", line, err)
	}
	worker.stop(t)
	next := s.startActing()
	b = newBrowser(t, next)
	response, body = b.submit(b.get(at), at+"/resume", url.Values{})
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("resume: %s\n%s", response.Status, body)
	}
	response, body = b.submit(b.get(at), at+"/cancel", url.Values{}) // the rate is still slow
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("cancel again: %s\n%s", response.Status, body)
	}
}

// TestConsole_Off_IsNotServed checks the default.
func TestConsole_Off_IsNotServed(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	if status, _ := s.startWorker().get(t, "/console/"); status != http.StatusNotFound {
		t.Errorf("the console answers %d without HOLDFAST_CONSOLE", status)
	}
}

// TestConsole_ManyResources_AllAreReachable shows the map of more resources than a page has. All its parts have the days of
// the first one, also when they are requested on another day.
func TestConsole_ManyResources_AllAreReachable(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startActing()
	s.sql(`INSERT INTO ` + s.namespace + `.inventory (resource_id, slot, capacity)
		SELECT 'room-' || lpad(n::text, 4, '0'), 'stock', 1 FROM generate_series(1, 1001) AS n`)
	b := newBrowser(t, worker)
	first := b.get("/console/availability")
	further := regexp.MustCompile(`href="([^"]+)">More resources`).FindStringSubmatch(first)
	if further == nil {
		t.Fatal("no link to the resources after the first 1,000")
	}
	from := regexp.MustCompile(`name="from" value="([^"]+)"`).FindStringSubmatch(first)
	part := regexp.MustCompile(`data-src="([^"]+)"`).FindStringSubmatch(first)
	if from == nil || part == nil || !strings.Contains(part[1], "from="+from[1]) || !strings.Contains(further[1], "from="+from[1]) {
		t.Errorf("the first day is %s, that of a part in %s, of the next page in %s", from, part, further[1])
	}
	if page := b.get(html.UnescapeString(further[1])); !strings.Contains(page, "room-1001") || strings.Contains(page, "More resources") {
		t.Errorf("the second page is\n%s", page)
	}
}

// TestConsole_HeldSlotBehindOthers_ShowsHold holds a slot until later than many holds on another slot of its resource, and
// then than more than a page reads.
func TestConsole_HeldSlotBehindOthers_ShowsHold(t *testing.T) {
	t.Parallel()
	const before, beyond = 150, 1900
	s := newHarness(t)
	b := newBrowser(t, s.startActing())
	late, stalls := holds.SlotSelection{Slots: []string{"late"}}, holds.SlotSelection{Slots: []string{"stalls"}}
	s.setInventory("hall", late, 1)
	s.setInventory("hall", stalls, before+beyond)
	hold := s.answer(s.book("hall", "eve", "late", late, 3600)).Subject
	request := func(number int, name string) {
		t.Helper()
		for n := range number {
			user := name + strconv.Itoa(n)
			s.book("hall", user, user, stalls, 1800)
		}
	}
	request(before, "ana")
	s.await("the holds", func(outcomes []events.Envelope, _ []nats.Header) bool {
		return len(ofType(outcomes, holds.EventHoldCreated)) == 1+before
	})
	page := b.get("/console/availability/hall?slot=late")
	if !strings.Contains(page, hold) || strings.Contains(page, "no live hold") || strings.Contains(page, "resource were read") {
		t.Errorf("behind %d others the hold %s is missing:\n%s", before, hold, page)
	}
	if !strings.Contains(page, "could be retried at") {
		t.Errorf("the page does not say when a request could be retried:\n%s", page)
	}
	if page = b.get("/console/availability/hall?slot=stalls"); !strings.Contains(page, "The 50 soonest holds are shown, of more") {
		t.Errorf("the page does not say that it has not all of %d holds:\n%s", before, page)
	}
	request(beyond, "ben")
	s.await("more holds", func(outcomes []events.Envelope, _ []nats.Header) bool {
		return len(ofType(outcomes, holds.EventHoldCreated)) == 1+before+beyond
	})
	page = b.get("/console/availability/hall?slot=late")
	if strings.Contains(page, "no live hold<") || !strings.Contains(page, "Only the 2\u202f000 soonest holds of this resource were read") {
		t.Errorf("behind %d others the page does not say what it has read:\n%s", before+beyond, page)
	}
	page = b.get("/console/holds?resource_id=hall&user_id=eve")
	if !strings.Contains(page, "no live hold matches of those that were read") || !strings.Contains(page, "after=") {
		t.Errorf("behind %d others the list of a user does not say what it has read:\n%s", before+beyond, page)
	}
}

// TestConsole_OutcomesOfOthers_DecisionsSayFromWhen stores as many outcomes of another resource as are read.
func TestConsole_OutcomesOfOthers_DecisionsSayFromWhen(t *testing.T) {
	t.Parallel()
	const others = 20_000
	s := newHarness(t)
	b := newBrowser(t, s.startActing())
	s.setInventory("hall", seat, 1)
	if page := b.get("/console/availability/hall"); !strings.Contains(page, "Decisions of the last hour") {
		t.Errorf("all decisions of the last hour are known, but the page is\n%s", page)
	}
	s.unfollow()
	for range others {
		m := &nats.Msg{Subject: s.subjects.Out(holds.EventHoldCreated, "other"), Data: []byte("{}")}
		if _, err := s.js.PublishMsgAsync(m, stacktest.WithoutHurry()); err != nil {
			t.Fatal(err)
		}
	}
	<-s.js.PublishAsyncComplete()
	page := b.get("/console/availability/hall")
	if strings.Contains(page, "Decisions of the last hour") || !regexp.MustCompile(`Decisions since \d\d:\d\d:\d\d UTC`).MatchString(page) {
		t.Errorf("the page does not say from when on decisions are known:\n%s", page)
	}
}

// TestConsole_ManyHoldsAndDeadLetters_PagesStayBounded requests the lists of a large namespace, and
// prints the bytes of each page and what it asks of the servers.
func TestConsole_ManyHoldsAndDeadLetters_PagesStayBounded(t *testing.T) {
	stacktest.LongOnly(t) // it stores 60,000 events
	const resources, perResource, deadLetters = 1000, 10, 50_000
	s := newHarness(t)
	worker := s.startActing()
	s.unfollow()
	today := time.Now().UTC()
	stay := holds.SlotSelection{CheckIn: today.Format(holds.DateFormat), CheckOut: today.AddDate(0, 0, 90).Format(holds.DateFormat)}
	store := func(subject string, body []byte) {
		t.Helper()
		if _, err := s.js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: body}, stacktest.WithoutHurry()); err != nil {
			t.Fatal(err)
		}
	}
	event := func(name, resource string, data any) {
		t.Helper()
		m, _, err := client.NewEvent(s.subjects, name, resource, "/test", data)
		stacktest.Must(t, err)
		store(m.Subject, m.Data)
	}
	for n := range resources {
		room := fmt.Sprintf("room-%04d", n)
		event(events.InventorySet, room, events.InventorySetData{ResourceID: room, SlotSelection: stay, Capacity: 12})
	}
	live := func() (l queries.Stats) { return getJSON[queries.Stats](t, worker, "/v1/stats") }
	stacktest.Eventually(t, "the inventory", func() bool { return live().Streams[1].Messages >= resources })
	for n := range resources * perResource {
		room := fmt.Sprintf("room-%04d", n%resources)
		event(events.BookingRequested, room, bookingData(room, fmt.Sprint("u", n), fmt.Sprint("k", n), stay, 3600))
	}
	for n := range deadLetters {
		store(s.subjects.In(events.BookingRequested, fmt.Sprintf("room-%04d", n%resources)), []byte(`{"no":"event"}`))
	}
	stacktest.Eventually(t, "holds and dead letters", func() bool {
		l := live()
		return l.LiveHolds != nil && l.LiveHolds.Total == resources*perResource && l.DeadLetters.Total == deadLetters
	})
	b := newBrowser(t, worker)
	for _, path := range []string{
		"/console/", "/console/availability?days=90", "/console/availability?days=90&part=rows&after=room-0019", "/console/availability/room-0001",
		"/console/holds", "/console/holds?resource_id=room-0001", "/console/dead-letters", "/console/dead-letters/list",
		"/console/dead-letters/confirm?verb=discard&reason=malformed", "/console/lateness",
	} {
		began := time.Now()
		page := b.get(path)
		t.Logf("%-70s %7d bytes  %s", path, len(page), time.Since(began).Round(time.Millisecond))
		if len(page) > 200<<10 {
			t.Errorf("%s has %d bytes", path, len(page))
		}
	}
}
