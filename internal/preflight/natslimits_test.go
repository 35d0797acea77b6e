package preflight_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/preflight"
	"holdfast/internal/stack/stacktest"
)

// limitedNATS is a server with the streams, and with events of 4 MB in the inbound stream.
type limitedNATS struct {
	*harness
	t      *testing.T
	server *server.Server
	stored int64 // bytes that the account uses
}

func newLimitedNATS(t *testing.T) *limitedNATS {
	t.Helper()
	w := &limitedNATS{harness: newHarness(t), t: t, server: natsServer(t, server.Options{JetStream: true, SyncAlways: true})}
	w.createStreams(w.server.ClientURL())
	w.withNATS(w.server.ClientURL(), func(js jetstream.JetStream) error {
		for range 40 {
			if _, err := js.Publish(t.Context(), "holdfast.in.none.room", make([]byte, 100<<10)); err != nil {
				return err
			}
		}
		account, err := js.AccountInfo(t.Context())
		if err == nil {
			w.stored = int64(account.Store)
		}
		return err
	})
	return w
}

// limit sets limits of the account, -1 for none.
func (w *limitedNATS) limit(storage int64, consumers int) {
	w.t.Helper()
	stacktest.Must(w.t, w.server.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{
		"": {MaxMemory: -1, MaxStore: storage, MaxStreams: -1, MaxConsumers: consumers},
	}))
}

// change changes the configuration of a stream.
func (w *limitedNATS) change(name string, change func(*jetstream.StreamConfig)) {
	w.t.Helper()
	w.withNATS(w.server.ClientURL(), func(js jetstream.JetStream) error {
		stream, err := js.Stream(w.t.Context(), name)
		if err != nil {
			return err
		}
		config := stream.CachedInfo().Config
		change(&config)
		_, err = js.UpdateStream(w.t.Context(), config)
		return err
	})
}

// expectLimits runs all checks. Only nats.limits may not be as on healthy servers.
func (w *limitedNATS) expectLimits(what string, status preflight.Status, words ...string) {
	w.t.Helper()
	c := w.expect(what, []string{"nats.limits " + string(status)},
		func(t *preflight.Target) { t.NATSURL = w.server.ClientURL() })["nats.limits"]
	for _, word := range words {
		if !strings.Contains(c.Found+c.Impact+c.Fix, word) {
			w.t.Errorf("%s: no %q in %+v", what, word, c)
		}
	}
}

// TestNATSLimits_AccountIsFull_Fails reaches the limit of the storage of the account: the server refuses events.
func TestNATSLimits_AccountIsFull_Fails(t *testing.T) {
	t.Parallel()
	w := newLimitedNATS(t)
	w.expectLimits("no limits", "ok")
	w.limit(2*w.stored, -1)
	w.expectLimits("half of the storage", "ok")
	w.limit(w.stored+w.stored/20, -1)
	w.expectLimits("95 % of the storage", "warn", "the account has", "max_file")
	w.limit(w.stored, -1)
	w.expectLimits("all of the storage", "fail", "the account has", "max_file", "no request is answered")
	w.withNATS(w.server.ClientURL(), func(js jetstream.JetStream) error {
		if _, err := js.Publish(t.Context(), "holdfast.in.none.room", nil); err == nil {
			t.Error("the server stores an event above the limit")
		}
		return nil
	})
}

// TestNATSLimits_ServerIsFull_Fails reaches the limit of the server itself, max_file, which an account without a limit
// does not show: the server refuses events. Only a monitoring address shows it.
func TestNATSLimits_ServerIsFull_Fails(t *testing.T) {
	t.Parallel()
	const limit = 6 << 20
	w := &limitedNATS{harness: newHarness(t), t: t, server: natsServer(t, server.Options{
		JetStream: true, SyncAlways: true, JetStreamMaxStore: limit, HTTPHost: "127.0.0.1", HTTPPort: -1,
	})}
	w.createStreams(w.server.ClientURL())
	store := func(times int) (refused error) {
		t.Helper()
		w.withNATS(w.server.ClientURL(), func(js jetstream.JetStream) error {
			for range times {
				_, refused = js.Publish(t.Context(), "holdfast.in.none.room", make([]byte, 100<<10))
			}
			return nil
		})
		return refused
	}
	unseen := func(t *preflight.Target) { t.NATSURL = w.server.ClientURL() }
	seen := func(t *preflight.Target) {
		unseen(t)
		t.Monitors = []string{"http://" + w.server.MonitorAddr().String()}
	}
	expect := func(what string, status preflight.Status, target func(*preflight.Target), words ...string) {
		t.Helper()
		c := w.check(target)["nats.limits"]
		for _, word := range words {
			if c.Status != status || !strings.Contains(c.Found+c.Impact+c.Fix, word) {
				t.Errorf("%s: want %s and %q in %+v", what, status, word, c)
			}
		}
	}
	stacktest.Must(t, store(30))
	expect("half of the storage", "ok", seen, "the streams have room")
	stacktest.Must(t, store(27))
	expect("95 % of the storage", "warn", seen, w.server.Name()+" has", "max_file")
	if err := store(30); !events.HasErrorCode(err, 10023) {
		t.Fatalf("the server stores events above its limit: %v", err)
	}
	expect("all of the storage", "fail", seen, w.server.Name()+" has", "max_file", "no request is answered")
	if c := w.check(unseen)["nats.limits"]; c.Status != "ok" || !strings.Contains(c.Found, "--nats-monitor-urls") {
		t.Errorf("without a monitoring address: %+v", c)
	}
}

// TestNATSLimits_ServerCannotWrite_Fails lets a server fail to write to its disk, as when that is full. It refuses the messages of
// that stream from then on.
func TestNATSLimits_ServerCannotWrite_Fails(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	s := natsServer(t, server.Options{JetStream: true, SyncAlways: true, HTTPHost: "127.0.0.1", HTTPPort: -1})
	w.createStreams(s.ClientURL())
	for _, stream := range []string{w.ns.InStream(), w.ns.OutStream()} { // the second file of its messages cannot be created
		stacktest.Must(t, os.Mkdir(filepath.Join(s.StoreDir(), server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream, "msgs", "2.blk"), 0o700))
	}
	target := func(t *preflight.Target) {
		t.NATSURL, t.Monitors = s.ClientURL(), []string{"http://" + s.MonitorAddr().String()}
	}
	if c := w.check(target)["nats.limits"]; c.Status != preflight.OK {
		t.Errorf("while all is stored: %+v", c)
	}
	w.withNATS(s.ClientURL(), func(js jetstream.JetStream) error {
		stacktest.Eventually(t, "a refused event", func() bool {
			_, err := js.Publish(t.Context(), "holdfast.in.none.room", make([]byte, 100<<10))
			return err != nil
		})
		return nil
	})
	if c := w.check(target)["nats.limits"]; c.Status != preflight.Fail || !strings.Contains(c.Found, "write error") ||
		!strings.Contains(c.Fix, "restart") {
		t.Errorf("after an error: %+v", c)
	}
}

// TestNATSLimits_NoConsumerLeft_Fails reaches the limit of the consumers: the server refuses that of a rebuild.
func TestNATSLimits_NoConsumerLeft_Fails(t *testing.T) {
	t.Parallel()
	w := newLimitedNATS(t)
	read := func() (err error) {
		t.Helper()
		w.withNATS(w.server.ClientURL(), func(js jetstream.JetStream) error {
			_, err = js.CreateConsumer(t.Context(), "HOLDFAST_IN", jetstream.ConsumerConfig{})
			return nil
		})
		return err
	}
	w.limit(-1, 7)
	w.expectLimits("four are left", "ok")
	w.limit(-1, 4)
	w.expectLimits("one is left", "warn", "HOLDFAST_IN has 3 of at most 4 consumers")
	w.limit(-1, 3)
	w.expectLimits("none is left", "fail", "HOLDFAST_IN has 3 of at most 3 consumers", "Redis cannot be rebuilt",
		"max_consumers")
	if api, is := errors.AsType[*jetstream.APIError](read()); !is || api.ErrorCode != 10026 {
		t.Errorf("a reader with no consumer left: %v", api)
	}
}

// TestNATSLimits_StreamIsFull_Fails reaches the limits of streams that refuse messages when they are full.
func TestNATSLimits_StreamIsFull_Fails(t *testing.T) {
	t.Parallel()
	w := newLimitedNATS(t)
	w.change("HOLDFAST_IN", func(c *jetstream.StreamConfig) { c.MaxMsgs = 43 })
	w.expectLimits("three events fit", "warn", "HOLDFAST_IN has 40 of at most 43 messages")
	w.change("HOLDFAST_IN", func(c *jetstream.StreamConfig) { c.MaxMsgs = 40 })
	w.expectLimits("no event fits", "fail", "HOLDFAST_IN has 40 of at most 40 messages", "--max-msgs=80", "no request")
	w.change("HOLDFAST_IN", func(c *jetstream.StreamConfig) { c.MaxMsgs, c.MaxBytes = -1, w.stored+1 })
	w.expectLimits("no large event fits", "fail", "HOLDFAST_IN has", "bytes", "--max-bytes=")
	w.change("HOLDFAST_IN", func(c *jetstream.StreamConfig) { c.MaxBytes = 2 * w.stored })
	w.expectLimits("half of the bytes", "ok")
}
