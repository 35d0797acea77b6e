package events

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/stack/stacktest"
)

// TestSetPause_ServerKnowsNoPause_SaysWhichDoes pauses and resumes a consumer of a server that is too old. Nothing is
// changed.
func TestSetPause_ServerKnowsNoPause_SaysWhichDoes(t *testing.T) {
	t.Parallel()
	ns := Namespace(stacktest.Namespace(t))
	setup(t, newJetStream(t), ns)
	url, proxy := stacktest.ProxyTo(t, stacktest.Shared().NATSURL)
	const field, older = `"version":"`, "2.10"
	proxy.Rewrite(stacktest.Downstream, field+server.VERSION, field+older+server.VERSION[len(older):])
	nc, err := Connect(url, t.Name(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := NewJetStream(nc, ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, pause := range []*Pause{{Reason: "new schema"}, nil} {
		err := SetPause(t.Context(), js, ns, ConsumerRequests, time.Hour, pause)
		if err == nil || !strings.Contains(err.Error(), "cannot pause a consumer, 2.11 and newer can") {
			t.Errorf("%v: %v", pause, err)
		}
	}
	if paused := consumerOf(t, js, ns, ConsumerRequests).CachedInfo(); len(paused.Config.Metadata[metadataPausedFor]) > 0 {
		t.Errorf("the consumer has the metadata %q", paused.Config.Metadata)
	}
}

// TestSetPause_ServerHasAnotherTime_EndsByItsClock pauses a consumer for an hour, through a JetStream API that gives a time
// two hours later as that of the server. It answers an update with a time of long ago, as a lone server does that was
// restarted then.
func TestSetPause_ServerHasAnotherTime_EndsByItsClock(t *testing.T) {
	t.Parallel()
	ns := Namespace(stacktest.Namespace(t))
	setup(t, newJetStream(t), ns)
	nc, err := Connect(stacktest.Shared().NATSURL, t.Name(), t.Logf)
	stacktest.Must(t, err)
	defer nc.Close()
	const ahead = 2 * time.Hour
	_, err = nc.Subscribe(string(ns)+".api.>", func(m *nats.Msg) {
		reply, err := nc.Request("$JS.API"+strings.TrimPrefix(m.Subject, string(ns)+".api"), m.Data, storeLimit)
		if err != nil {
			t.Error(err)
			return
		}
		before, rest, found := strings.Cut(string(reply.Data), `"ts":"`)
		if text, after, _ := strings.Cut(rest, `"`); found {
			at, _ := time.Parse(time.RFC3339Nano, text) // else the pause is too short
			if !strings.Contains(m.Subject, ".CONSUMER.INFO.") {
				at = at.Add(-30 * 24 * time.Hour)
			}
			reply.Data = []byte(before + `"ts":"` + at.Add(ahead).Format(time.RFC3339Nano) + `"` + after)
		}
		_ = m.Respond(reply.Data) // without it the request fails
	})
	stacktest.Must(t, err)
	js, err := jetstream.NewWithAPIPrefix(nc, string(ns)+".api")
	stacktest.Must(t, err)
	began := time.Now().Truncate(time.Millisecond)
	pause := &Pause{Reason: "new schema"}
	stacktest.Must(t, SetPause(t.Context(), js, ns, ConsumerRequests, time.Hour, pause))
	found := PauseOf(consumerOf(t, js, ns, ConsumerRequests).CachedInfo())
	if found == nil || *found != *pause || found.Until.Before(began.Add(ahead+time.Hour)) {
		t.Errorf("paused at %v, %v ahead of which is the server: %v, want %v", began, ahead, found, pause)
	}
}

// TestSetPause_TimeIsOver_Fails pauses a consumer until a time that is over by the clock of the server.
func TestSetPause_TimeIsOver_Fails(t *testing.T) {
	t.Parallel()
	js, ns := newJetStream(t), Namespace(stacktest.Namespace(t))
	setup(t, js, ns)
	err := SetPause(t.Context(), js, ns, ConsumerRequests, -time.Minute, &Pause{Reason: "new schema"})
	if err == nil || !strings.Contains(err.Error(), "not paused") {
		t.Error(err)
	}
}
