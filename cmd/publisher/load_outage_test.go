package main

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"holdfast/internal/events"
	"holdfast/internal/stack/stacktest"
)

// TestLoad_ServerOutage_Continues stops and restarts the server during a load.
func TestLoad_ServerOutage_Continues(t *testing.T) {
	t.Parallel()
	stacktest.LongOnly(t)
	const count, capacity = 2000, 700
	dir := t.TempDir()
	nats := stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: dir})
	url, port := nats.ClientURL(), nats.Addr().(*net.TCPAddr).Port
	namespace := stacktest.Namespace(t)
	subjects := events.Namespace(namespace)
	requests := subjects.In(events.BookingRequested, "loft")
	startWorker(t, append(serverFlags(t), "--nats-url", url, "--namespace", namespace)...)
	there := []string{"--namespace", namespace, "--nats-url", url}
	publisher(t, append(words(fmt.Sprintf("inventory set --resource-id loft --capacity %d --wait", capacity)),
		there...)...).want(t, exitOK)

	lines := make([]string, count)
	for i := range lines {
		lines[i] = shortRequest("loft", fmt.Sprintf("k%d", i)) + "\n"
	}
	in, file := io.Pipe()
	cut := make(chan struct{})
	seen := &watched{wants: []string{"disconnected"}, done: func() {
		select {
		case <-cut:
		default:
			close(cut)
		}
	}}
	ended := make(chan int, 1)
	var out strings.Builder
	go func() {
		p := newProgram(&out, &lockedWriter{w: seen})
		p.in = in
		ended <- exitCode(p.run(t.Context(), append([]string{"load", "-f", "-", "-o", "json", "--timeout", "1s"}, there...)))
	}()
	if _, err := io.WriteString(file, strings.Join(lines[:count/2], "")); err != nil {
		t.Fatal(err)
	}
	stacktest.Eventually(t, "half of the file to be stored", func() bool {
		return storedOf(t, url, subjects.InStream(), requests) == count/2
	})
	nats.Shutdown()
	nats.WaitForShutdown()
	<-cut
	rest := make(chan error, 1)
	go func() {
		_, err := io.WriteString(file, strings.Join(lines[count/2:], ""))
		_ = file.Close() // never fails
		rest <- err
	}()
	stacktest.StartNATS(t, &server.Options{JetStream: true, StoreDir: dir, Port: port})
	if code, err := <-ended, <-rest; code != exitOK || err != nil {
		t.Fatalf("exit code %d, %v\n%s\n%s", code, err, out.String(), seen.text.String())
	}
	s := summaryOf(t, result{exitOK, out.String(), seen.text.String()})
	s.expect(t, count, 0)
	if n := storedOf(t, url, subjects.InStream(),
		requests); n < count { // a message that NATS stored without an acknowledgement is stored twice
		t.Errorf("%d are stored, want at least %d", n, count)
	}

	again := runWith(t.Context(), strings.NewReader(strings.Join(lines, "")),
		append([]string{"load", "-f", "-", "--wait", "-o", "json", "--timeout", "1m"}, there...)...).want(t, exitRejected)
	s = summaryOf(t, again)
	s.expect(t, count, 0)
	if want := map[string]int{"hold.created": capacity,
		"hold.rejected sold_out": count - capacity}; fmt.Sprint(s.outcomes()) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", s.outcomes(), want)
	}
}

// TestLoad_ProcessStopped_SecondLoadCompletes interrupts and kills the process of a load half-way, and then loads the
// whole file.
func TestLoad_ProcessStopped_SecondLoadCompletes(t *testing.T) {
	t.Parallel()
	const count, capacity = 1000, 600
	resource := fresh("signals")
	stock(t, capacity, resource)
	var file strings.Builder
	for i := range count {
		file.WriteString(shortRequest(resource, fmt.Sprintf("k%d", i)) + "\n")
	}
	path, url := fileOf(t, file.String()), serverFlags(t)[1]
	begun := 0
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		load := exec.CommandContext(t.Context(), publisherBinary, append([]string{"load", "-f", path, "--rate", "300", "--wait", "-o", "json"},
			patience...)...)
		var out, errOut strings.Builder
		load.Stdout, load.Stderr = &out, &errOut
		if err := load.Start(); err != nil {
			t.Fatal(err)
		}
		stacktest.Eventually(t, "a part of the file to be stored", func() bool {
			return storedOf(t, url, "HOLDFAST_IN", "holdfast.in.booking.requested."+resource) > begun+100
		})
		if err := load.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		err := load.Wait()
		if signal == syscall.SIGINT {
			r := result{load.ProcessState.ExitCode(), out.String(), errOut.String()}.want(t, exitFailed, "interrupted",
				"load the same file again")
			if s := summaryOf(t, r); s.Complete || s.Lines >= count {
				t.Errorf("%s", r.out)
			}
		} else if err == nil {
			t.Error("the load ended before it was killed")
		}
		begun = storedOf(t, url, "HOLDFAST_IN", "holdfast.in.booking.requested."+resource)
	}
	r := publisher(t, "load", "-f", path, "--wait", "-o", "json").want(t, exitRejected)
	s := summaryOf(t, r)
	if s.Published+s.Duplicates != count { // events that were stored before get the same outcome
		t.Errorf("%s", r.out)
	}
	if want := map[string]int{"hold.created": capacity,
		"hold.rejected sold_out": count - capacity}; fmt.Sprint(s.outcomes()) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", s.outcomes(), want)
	}
	if n := heldQuantity(t, resource); n != capacity {
		t.Errorf("%d are held, want %d", n, capacity)
	}
}
