package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"holdfast/internal/holds"
	"holdfast/internal/queries"
	"holdfast/internal/stack/stacktest"
)

// TestTop_Once_ShowsWhatAWorkerDoes prints one picture of a worker with a live hold, a dead letter and a pause.
func TestTop_Once_ShowsWhatAWorkerDoes(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	worker := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 10)
	s.answer(s.book("hall", "ann", "k", holds.SlotSelection{}, 600))
	s.asMigrator(exitOK, "pause", "--consumers", "changes", "--reason", "new \x1b[31mschema\nready", "--who", "eve")
	code, out := execute(t.Context(), "top", "--http-addr", worker.http)
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, out)
	}
	for _, want := range []string{"namespace " + s.namespace, "requests", "payments", "changes is paused until", ` by eve: new \x1b[31mschema\nr`,
		"1 live holds; most: hall 1", "0 dead letters", "no hold has expired yet", "lock waits: none"} {
		if !strings.Contains(out, want) {
			t.Errorf("the picture lacks %q:\n%s", want, out)
		}
	}
	lines := strings.Split(out, "\n")
	for _, line := range lines {
		if utf8.RuneCountInString(line) > topWidth {
			t.Errorf("wider than %d columns: %s", topWidth, line)
		}
	}
	if len(lines) > 22 || strings.Contains(out, "\x1b") {
		t.Errorf("the picture has %d lines, or control characters:\n%q", len(lines), out)
	}
}

// TestTop_NoWorker_SaysWhatToDo reads from an address without a worker.
func TestTop_NoWorker_SaysWhatToDo(t *testing.T) {
	t.Parallel()
	code, out := execute(t.Context(), "top", "--once", "--http-addr", "127.0.0.1:1")
	if code != exitFailed || !strings.Contains(out, "worker dev") {
		t.Errorf("exit code %d: %s", code, out)
	}
	none := top{addr: "127.0.0.1:1", api: "127.0.0.1:1"}
	m := &topModel{ctx: t.Context(), top: none, last: none.read(t.Context())}
	if text := m.View().Content; !strings.HasPrefix(text, "no answer from worker") || strings.Contains(text, "UTC") {
		t.Errorf("in a terminal: %s", text)
	}
}

// TestTop_AddressesWithoutPort_NamesTheSetting gives each of the two addresses without a port.
func TestTop_AddressesWithoutPort_NamesTheSetting(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"--http-addr", "--api-addr"} {
		code, out := execute(t.Context(), "top", "--once", setting, "oops")
		if code != exitUsage || !strings.Contains(out, setting+" oops is not host:port") {
			t.Errorf("%s: exit code %d: %s", setting, code, out)
		}
	}
}

// TestTop_ServerUnavailable_SaysWhatTheWorkerSays reads from a worker that cannot answer, as it says itself.
func TestTop_ServerUnavailable_SaysWhatTheWorkerSays(t *testing.T) {
	t.Parallel()
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		(&server{}).answer(w, http.StatusServiceUnavailable, queries.Problem{Reason: "unavailable", Detail: "see /readyz"})
	}))
	defer worker.Close()
	code, out := execute(t.Context(), "top", "--once", "--http-addr", worker.Listener.Addr().String())
	if code != exitFailed || !strings.Contains(out, "503 Service Unavailable: see /readyz") ||
		strings.Contains(out, "is it the --http-addr") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestTop_TokenChanges_SendsTheNewOne changes the file with the token between two pictures, and then removes it.
func TestTop_TokenChanges_SendsTheNewOne(t *testing.T) {
	t.Parallel()
	var sent []string
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/stats" {
			sent = append(sent, r.Header.Get("Authorization"))
			(&server{}).answer(w, http.StatusOK, workerStats{})
		}
	}))
	defer worker.Close()
	file := fileOf(t, "token", "first\n")
	addr := statsAddress{HTTPAddr: worker.Listener.Addr().String(), TokenFile: file}
	top, err := addr.find(t.TempDir())
	stacktest.Must(t, err)
	stacktest.Must(t, top.read(t.Context()).err)
	stacktest.Must(t, os.WriteFile(file, []byte("second\n"), 0o600))
	stacktest.Must(t, top.read(t.Context()).err)
	if want := []string{"Bearer first", "Bearer second"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
	stacktest.Must(t, os.Remove(file))
	if r := top.read(t.Context()); r.err == nil || len(sent) != 2 || !strings.Contains(r.err.Error(), "--api-token-file") {
		t.Errorf("without the file: %v after %q", r.err, sent)
	}
}

// TestTop_Space_HoldsThePictureStill presses keys: while the picture is held nothing changes, and an error keeps the
// last picture and its time, and says that it is old.
func TestTop_Space_HoldsThePictureStill(t *testing.T) {
	t.Parallel()
	m := &topModel{ctx: t.Context()}
	at := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	reading := func(namespace string) topReading { return topReading{at: at, stats: workerStats{Namespace: namespace}} }
	space := tea.KeyPressMsg{Code: tea.KeySpace, Text: " "}
	m.Update(reading("first"))
	m.Update(space)
	m.Update(reading("second"))
	if text := m.View().Content; !strings.Contains(text, "namespace first") || !strings.Contains(text, "held still") {
		t.Errorf("held still, it shows %s", text)
	}
	m.Update(space)
	m.Update(reading("third"))
	if text := m.View().Content; strings.Contains(text, "OLD") {
		t.Errorf("after an answer it shows %s", text)
	}
	for i := range 2 {
		m.Update(topReading{at: at.Add(time.Duration(i+1) * time.Minute), err: errors.New("no answer")})
		if text := m.View().Content; !strings.Contains(text, "namespace third") || !strings.Contains(text, "no answer") ||
			!strings.Contains(text, "09:00:00 UTC") || !strings.Contains(text, "\nOLD: the last answer is of 09:00:00 UTC\n") {
			t.Errorf("after %d errors it shows %s", i+1, text)
		}
	}
	if _, command := m.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); command == nil {
		t.Error("q does not end it")
	} else if _, quits := command().(tea.QuitMsg); !quits {
		t.Error("q does not end it")
	}
}
