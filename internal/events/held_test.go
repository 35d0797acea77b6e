package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/holds"
)

// TestSlowLane_OthersGoOn has the lane of one resource stand still while more events about it come than a consumer may
// have in flight: those about others are decided. When the lane goes on, each of its events is decided.
func TestSlowLane_OthersGoOn(t *testing.T) {
	t.Parallel()
	resources := lanesOf(t)
	b := newBench(t)
	const number = inFlightMax + fetchMax
	stuck := resources[0]
	decided := &decisions{keys: make(map[string][]string)}
	goOn, letGo := gate(t)
	b.set(func(key string, _ int) error {
		if strings.HasPrefix(key, stuck+":") {
			<-goOn
		}
		decided.note(key)
		return nil
	})
	for i := range number {
		if b.ask(stuck, i); i%fetchMax == 0 {
			b.awaitPublished() // there is a bound
		}
	}
	b.awaitPublished()
	for i := range 10 {
		for _, resource := range resources[1:] {
			b.ask(resource, i)
		}
	}
	b.awaitPublished()
	others := 10 * (len(resources) - 1)
	b.await("the outcomes of the others", func() bool { return len(b.out) == others })
	if n := len(decided.of(stuck)); n != 0 {
		t.Errorf("%d events were decided that were to stand still", n)
	}
	letGo()
	b.await("all outcomes", func() bool { return len(b.out) == number+others })
	keys := decided.of(stuck)
	slices.Sort(keys)
	if got := len(slices.Compact(keys)); got != number {
		t.Errorf("%d events of the slow lane were decided, want %d", got, number)
	}
}

// TestCorruptHotResource_OthersGoOn has more events wait for one resource whose data is corrupt than consumers of
// versions before would have had delivered at all. Those about others are decided, and later its own.
func TestCorruptHotResource_OthersGoOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.set(func(key string, _ int) error {
		if strings.HasPrefix(key, "hot:") {
			return fmt.Errorf("count of stock: %w", holds.ErrDamaged)
		}
		return nil
	})
	const number = 4*inFlightMax + fetchMax
	for i := range number {
		if b.ask("hot", i); i%fetchMax == 0 {
			b.awaitPublished() // there is a bound
		}
	}
	b.awaitPublished()
	for i := range 100 {
		b.ask(fmt.Sprintf("cold-%d", i), 0)
	}
	b.awaitPublished()
	b.await("the outcomes of the others", func() bool { return len(b.out) == 100 })
	consumer, err := b.js.Consumer(t.Context(), b.ns.InStream(), ConsumerRequests)
	if err != nil {
		t.Fatal(err)
	}
	if info := consumer.CachedInfo(); info.Config.MaxAckPending != ackPendingMax {
		t.Errorf("%d events may wait, want %d", info.Config.MaxAckPending, ackPendingMax)
	}
	if b.workers[0].failedAt.Load() != 0 || len(b.dlq) > 0 {
		t.Errorf("the consumer has paused, or %d events died", len(b.dlq))
	}
	b.set(nil)
	before := len(b.out)
	b.await("outcomes of the resource", func() bool { return len(b.out) > before+recallMax })
}

// heldEventOf is an event that was delivered once.
func heldEventOf(seq uint64) *delivery {
	return &delivery{
		msg:  reply(fmt.Sprint(seq)),
		meta: &jetstream.MsgMetadata{NumDelivered: 1, Sequence: jetstream.SequencePair{Stream: seq}},
	}
}

// TestHeld_KeepsOrder has events of a slow lane wait and come back.
func TestHeld_KeepsOrder(t *testing.T) {
	t.Parallel()
	h := newHeld()
	admits := func(resource string, seq uint64, want bool) {
		t.Helper()
		if got := h.admits(resource, seq); got != want {
			t.Errorf("event %d of %s may be decided: %v, want %v", seq, resource, got, want)
		}
	}
	admits("a", 1, true)
	for seq := uint64(10); seq <= 14; seq++ {
		if delay, first := h.add("a", heldEventOf(seq), false); first != (seq == 10) || delay != delayHeld {
			t.Errorf("event %d waits %v, is the first: %v", seq, delay, first)
		}
	}
	admits("b", 30, true) // nothing of it waits
	admits("a", 15, false)
	admits("a", 12, false) // it has come back, and is to wait again
	h.add("a", heldEventOf(12), false)
	admits("a", 9, true)
	admits("a", 10, true)
	if got := h.recallWaiting(2); !slices.Equal(got, []string{"11", "12"}) {
		t.Errorf("recalled %q", got)
	}
	if got := h.recallAll(); !slices.Equal(got, []string{"13", "14"}) {
		t.Errorf("recalled %q", got)
	}
	for seq := uint64(11); seq <= 14; seq++ {
		admits("a", 15, false)
		admits("a", seq, true)
	}
	admits("a", 15, true)
	h.add("b", heldEventOf(20), false)
	admits("b", 21, false)
	h.resources["b"].events[0].back = time.Now().Add(-2 * lostAfter)
	admits("b", 21, true) // another worker has it
	if n := h.events.Load(); n != 0 || len(h.resources) != 0 {
		t.Errorf("%d events are left, of %d resources", n, len(h.resources))
	}
}

// TestHeld_Corrupt has events of a corrupt resource wait: they keep no others waiting, the first is retried soon, and
// when one of them can be decided the others are recalled.
func TestHeld_Corrupt(t *testing.T) {
	t.Parallel()
	h := newHeld()
	for seq := uint64(10); seq <= 12; seq++ {
		want := delayHeld
		if seq == 10 {
			want = delayDamaged
		}
		if delay, first := h.add("a", heldEventOf(seq), true); first != (seq == 10) || delay != want {
			t.Errorf("event %d waits %v, is the first: %v", seq, delay, first)
		}
	}
	if !h.admits("a", 10) || !h.admits("a", 15) {
		t.Error("an event waits for others that are corrupt")
	}
	if got := append(h.decided("a", 15), h.recallWaiting(10)...); len(got) > 0 {
		t.Errorf("recalled %q when another one was decided", got)
	}
	if _, first := h.add("a", heldEventOf(10), true); !first {
		t.Error("the first that comes back is not the first any more")
	}
	if got := h.decided("a", 10); !slices.Equal(got, []string{"11", "12"}) {
		t.Errorf("recalled %q", got)
	}
	h.decided("a", 11)
	if h.decided("a", 12); h.events.Load() != 0 || len(h.resources) != 0 {
		t.Errorf("%d events are left, of %d resources", h.events.Load(), len(h.resources))
	}
	h.add("a", heldEventOf(20), true)
	h.resources["a"].events[0].back = time.Now().Add(-2 * lostAfter)
	if _, first := h.add("a", heldEventOf(21), true); !first || h.events.Load() != 1 {
		t.Error("one that another worker has is still the first")
	}
}

// TestHeld_Bound has more events wait than places are kept for: each resource has one at least.
func TestHeld_Bound(t *testing.T) {
	t.Parallel()
	h := newHeld()
	h.events.Store(heldMax)
	for seq := range uint64(3) {
		h.add("a", heldEventOf(seq), false)
	}
	if n := h.events.Load(); n != heldMax+1 {
		t.Errorf("%d events, want %d", n, heldMax+1)
	}
	if got := growingTo(delayHeld, 100, delayHeldMax); got != delayHeldMax {
		t.Errorf("event waits %v", got)
	}
}

// replier is a message of which only the reply subject is known.
type replier struct {
	jetstream.Msg
	subject string
}

func (r replier) Reply() string { return r.subject }

func reply(subject string) jetstream.Msg { return replier{subject: subject} }
