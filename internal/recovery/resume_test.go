package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestResume_LastWritesLost_OnlyLaterOutcomesAreRead makes Redis lose its last writes. Only the outcomes after
// the marker are read, also those whose changes Redis has, and only their holds are written.
func TestResume_LastWritesLost_OnlyLaterOutcomesAreRead(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"}, holds.PlaceRequest{Resource: "room", User: "ben"})
	w.mark(t)
	kept := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "cleo"})[0])
	lose := w.copyKeys(t)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "dan"})
	w.release(t, kept.HoldID, "released")
	want := w.contents(t)
	lose()
	r := w.resume(t, &replayLog{})
	if !r.Resumed || r.Outcomes != 3 || r.Live != 1 || r.Ended != 1 {
		t.Errorf("resumed %+v", r)
	}
	if got := w.contents(t); !maps.Equal(got, want) {
		t.Errorf("redis has\n%v, want\n%v", got, want)
	}
	if held := w.held(t, "room"); held != 3 {
		t.Errorf("%d held", held)
	}
	// The marker of the epoch before is gone, and that of this epoch serves the next loss.
	lose = w.markAndCopy(t)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "eve"})
	lose()
	if r := w.resume(t, &replayLog{}); !r.Resumed || r.Outcomes != 1 {
		t.Errorf("resumed again: %+v", r)
	}
}

// TestResume_ExtendedTwiceSinceMarker_EachAnswerStays makes Redis lose its last writes, but neither of two extensions
// after the marker: each of them gets its own answer again.
func TestResume_ExtendedTwiceSinceMarker_EachAnswerStays(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	w.mark(t)
	first := holds.ExtendRequest{EventID: "first", StoredAt: time.Now(), Hold: hold, TTLSeconds: 1500}
	answer := w.extend(t, first)
	w.extend(t, holds.ExtendRequest{EventID: "second", StoredAt: time.Now(), Hold: hold, TTLSeconds: 3000})
	lose := w.copyKeys(t)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
	want := w.contents(t)
	lose()
	if r := w.resume(t, &replayLog{}); !r.Resumed {
		t.Errorf("resumed %+v", r)
	}
	if got := w.contents(t); !maps.Equal(got, want) {
		t.Errorf("redis has\n%v, want\n%v", got, want)
	}
	if again := w.extend(t, first); again.Data.(holds.HoldExtended).ExpiresAt != answer.Data.(holds.HoldExtended).ExpiresAt {
		t.Errorf("the first extension is answered %+v, was %+v", again.Data, answer.Data)
	}
}

// contents returns the hashes and sorted sets of a harness' resources as text, and its answers. It leaves out
// the times until which ended holds are remembered, which outcomes do not have.
func (w *harness) contents(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, key := range w.client.Keys(t.Context(), w.namespace+":*").Val() {
		_, name, _ := strings.Cut(key, "}:")
		_, kind, found := strings.Cut(name, ":")
		kind, _, _ = strings.Cut(kind, ":")
		if !found || kind == "rev" {
			continue
		}
		switch w.client.Type(t.Context(), key).Val() {
		case "hash":
			all[name] = fmt.Sprint(w.client.HGetAll(t.Context(), key).Val())
		case "zset":
			all[name] = fmt.Sprint(w.client.ZRange(t.Context(), key, 0, -1).Val())
		case "string":
			all[name] = w.client.Get(t.Context(), key).Val()
		}
	}
	return all
}

// changeMarker replaces a part of a partition's marker, which otherwise stays as it was written.
func changeMarker(t *testing.T, w *harness, part, by string) {
	t.Helper()
	key := record.Keyspace(w.namespace).Applied(7)
	before := w.client.Get(t.Context(), key).Val()
	after := strings.Replace(before, part, by, 1)
	if after == before {
		t.Fatalf("marker %q has no %q", before, part)
	}
	w.client.Set(t.Context(), key, after, 0)
}

// TestResume_GrantOfTimeAheadRepeated_HoldStaysLive repeats a request that was granted, or a late payment that was
// accepted, while the clock of Redis was an hour ahead, before the marker. That expires no hold that was granted after the
// marker.
func TestResume_GrantOfTimeAheadRepeated_HoldStaysLive(t *testing.T) {
	t.Parallel()
	for granted, live := range map[string]int{"request": 2, "late payment": 1} {
		t.Run(granted, func(t *testing.T) {
			t.Parallel()
			w := newHarness(t)
			w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
			w.setInventory(t, "room", holds.SlotSelection{}, 5)
			request := holds.PlaceRequest{EventID: "first", Resource: "room", User: "ana", RequestKey: "k"}
			var first holds.HoldID
			grant := func() string { return brief(w.pay(t, first, "late")) }
			if granted == "request" {
				grant = func() string {
					defer func() { request.EventID = "again" }()
					return brief(w.place(t, request)[0])
				}
			} else {
				first = created(t, w.place(t, request)[0]).HoldID
			}
			w.pass(time.Hour)
			before := grant()
			w.pass(-time.Hour)
			lose := w.markAndCopy(t)
			hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0]).HoldID
			if again := grant(); !strings.HasPrefix(again, before) {
				t.Errorf("first %s, then %s", before, again)
			}
			lose()
			if r := w.resume(t, &replayLog{harness: w}); !r.Resumed || r.Live != live {
				t.Errorf("resumed %+v", r)
			}
			if view, _, err := w.service.GetHold(t.Context(), hold); err != nil || view.State != holds.Held {
				t.Errorf("hold is %q %v, want held", view.State, err)
			}
		})
	}
}

// TestResume_NotPossible_Rebuilds makes Redis lose its last writes when it has no marker that can be used.
// Everything is rebuilt.
func TestResume_NotPossible_Rebuilds(t *testing.T) {
	t.Parallel()
	keys := func(w *harness) record.Keyspace { return record.Keyspace(w.namespace) }
	for name, c := range map[string]struct {
		spoil  func(t *testing.T, w *harness)
		change func(*replayLog)
	}{
		"no marker in one partition": {spoil: func(t *testing.T, w *harness) {
			w.client.Del(t.Context(), keys(w).Applied(7))
		}},
		"marker of another type": {spoil: func(t *testing.T, w *harness) {
			w.client.Del(t.Context(), keys(w).Applied(7))
			w.client.RPush(t.Context(), keys(w).Applied(7), "nonsense")
		}},
		"marker of another epoch": {spoil: func(t *testing.T, w *harness) {
			changeMarker(t, w, w.epoch+" ", w.epoch+"0 ")
		}},
		"marker of another stream": {spoil: func(t *testing.T, w *harness) {
			changeMarker(t, w, " 1790000000000000123.", " 1790000000000000124.")
		}},
		"higher marker of what the stream had before it went back": {spoil: func(t *testing.T, w *harness) {
			changeMarker(t, w, "123.1.", "123.9.")
		}},
		"keys evicted, the epoch among them": {spoil: func(t *testing.T, w *harness) {
			w.client.Del(t.Context(), keys(w).Epoch(record.Partition("room")), w.key("room", "records"))
		}},
		"half rebuilt, with markers": {spoil: func(t *testing.T, w *harness) {
			w.client.Set(t.Context(), keys(w).Epoch(7), w.epoch+"/1 rebuilding", 0)
		}},
		"corrupt record": {spoil: func(t *testing.T, w *harness) {
			for id := range w.client.HGetAll(t.Context(), w.key("room", "records")).Val() {
				w.client.HSet(t.Context(), w.key("room", "records"), id, "nonsense")
			}
		}},
		"records of another type": {spoil: func(t *testing.T, w *harness) {
			w.client.Del(t.Context(), w.key("room", "records"))
			w.client.RPush(t.Context(), w.key("room", "records"), "nonsense")
		}},
		"count too low": {spoil: func(t *testing.T, w *harness) {
			w.client.HSet(t.Context(), w.key("room", "counts"), "stock", 0)
		}},
		"outcomes after the marker removed": {change: func(l *replayLog) { l.missing = true }},
		"outcome stored after all were read": {change: func(l *replayLog) {
			l.late, l.outcomes = l.outcomes[len(l.outcomes)-1:], l.outcomes[:len(l.outcomes)-1]
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRealTimeHarness(t)
			w.setInventory(t, "room", holds.SlotSelection{}, 5)
			ana := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
			lose := w.markAndCopy(t)
			w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
			w.release(t, ana.HoldID, "released")
			w.place(t, holds.PlaceRequest{Resource: "room", User: "cleo"})
			want := w.contents(t)
			lose()
			if c.spoil != nil {
				c.spoil(t, w)
			}
			l := &replayLog{harness: w}
			if c.change != nil {
				c.change(l)
			}
			if r := w.resume(t, l); r.Resumed || r.Live != 2 || r.Outcomes != 4 {
				t.Errorf("rebuilt %+v", r)
			}
			if got := w.contents(t); !maps.Equal(got, want) {
				t.Errorf("redis has\n%v, want\n%v", got, want)
			}
		})
	}
}

// newRebuiltHarness returns a harness whose Redis was rebuilt between the holds of two users. It also returns the first.
func newRebuiltHarness(t *testing.T) (w *harness, first holds.HoldID) {
	t.Helper()
	w = newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	first = created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
	w.loseAndRebuild(t, &replayLog{})
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
	return w, first
}

// losePostgres makes Postgres lose the present epoch of Redis, as a restore does. An earlier one is complete again.
func (w *harness) losePostgres(t *testing.T) {
	t.Helper()
	first := strings.Split(w.epoch, "/")[0]
	w.execute(t, `UPDATE partition_epochs SET epoch = '`+first+`', generation = 1`)
}

// notice lets a supervisor check the servers. The reason for which it finds all partitions lost must begin with a text.
func (w *harness) notice(t *testing.T, supervisor *recovery.Supervisor, why string) {
	t.Helper()
	if e, err := checkAll(t, supervisor); err != nil || e.Complete || !strings.HasPrefix(e.Why, why) {
		t.Fatalf("epoch is %+v %v, want %q", e, err, why)
	}
}

// TestResume_PostgresLostTheEpoch_OnlyLaterOutcomesAreRead restores an older state of Postgres, from before an earlier loss of
// Redis. Only the outcomes after the marker are read, unless Redis was promoted: then its epoch may not be the last one.
func TestResume_PostgresLostTheEpoch_OnlyLaterOutcomesAreRead(t *testing.T) {
	t.Parallel()
	for name, promoted := range map[string]bool{"redis has all": false, "redis was promoted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := newRebuiltHarness(t)
			w.mark(t)
			w.place(t, holds.PlaceRequest{Resource: "room", User: "cleo"})
			want, before := w.contents(t), w.epoch
			if promoted {
				changeMarker(t, w, historyOf(t, w), strings.Repeat("a", 40))
			}
			w.losePostgres(t)
			supervisor := w.newRebuilder(&replayLog{harness: w})
			w.notice(t, supervisor, "newer epoch")
			r, err := supervisor.Rebuild(t.Context(), "", false, func(string) {})
			if err != nil || r.Resumed == promoted || r.Resumed && r.Outcomes != 1 {
				t.Errorf("recovered %+v %v", r, err)
			}
			w.adoptEpoch(t)
			if got := w.contents(t); !maps.Equal(got, want) || w.epoch == before {
				t.Errorf("redis has\n%v, want\n%v, epoch %s after %s", got, want, w.epoch, before)
			}
			if w.place(t, holds.PlaceRequest{Resource: "room", User: "dan"}); w.held(t, "room") != 4 {
				t.Errorf("%d held", w.held(t, "room"))
			}
		})
	}
}

// TestResume_StreamAndPostgresRestored_HoldsStay restores older states of Postgres and of the outbound stream, while Redis
// has all of its data. What only Redis has stays. It is rebuilt when it may have lost data, too, when the stream has what
// its marker names, and when it has settled a payment that waits in the inbound stream and that Postgres lacks.
func TestResume_StreamAndPostgresRestored_HoldsStay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kept, paid bool
		spoil      func(t *testing.T, w *harness, l *replayLog, hold holds.HoldID)
	}{
		"nothing else": {kept: true},
		"the stream has new outcomes": {kept: true, spoil: func(_ *testing.T, w *harness, l *replayLog, _ holds.HoldID) {
			l.created = logCreated.Add(time.Hour)
			w.outcomes = append(w.outcomes, w.outcomes[0], w.outcomes[0])
		}},
		"redis was promoted": {spoil: func(t *testing.T, w *harness, _ *replayLog, _ holds.HoldID) {
			changeMarker(t, w, historyOf(t, w), strings.Repeat("a", 40))
		}},
		"the stream lacks only later outcomes": {spoil: func(_ *testing.T, w *harness, l *replayLog, _ holds.HoldID) {
			l.missing = true
			w.outcomes = append(w.outcomes, w.outcomes[0])
		}},
		"a settled payment is lost": {paid: true, spoil: func(t *testing.T, w *harness, l *replayLog, hold holds.HoldID) {
			w.execute(t, `DELETE FROM payments`)
			w.execute(t, `DELETE FROM reservations`)
			w.execute(t, `UPDATE inventory SET reserved = 0`)
			l.payments = []holds.Payment{{ConfirmRequest: holds.ConfirmRequest{Hold: hold, PaymentID: "pay"}, At: holds.Time{Time: time.Now()}}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, ana := newRebuiltHarness(t)
			if c.paid {
				w.pay(t, ana, "pay")
			}
			w.mark(t)
			want := w.contents(t)
			w.losePostgres(t)
			w.outcomes = w.outcomes[:1]
			l := &replayLog{harness: w}
			supervisor := w.newRebuilder(l)
			w.notice(t, supervisor, "newer epoch")
			if c.spoil != nil {
				c.spoil(t, w, l, ana)
			}
			r, err := supervisor.Rebuild(t.Context(), "", false, func(string) {})
			if err != nil || r.Resumed != c.kept || r.Resumed && r.Outcomes > 0 {
				t.Errorf("recovered %+v %v", r, err)
			}
			w.adoptEpoch(t)
			if got := w.contents(t); maps.Equal(got, want) != c.kept {
				t.Errorf("redis has\n%v, before\n%v", got, want)
			}
		})
	}
}

// TestResume_KeptEpochNotCompleted_HoldsStay keeps a Redis that is newer than Postgres and the outbound stream. The worker is
// stopped when the epoch is in Redis and not complete yet. The next attempt keeps it, too.
func TestResume_KeptEpochNotCompleted_HoldsStay(t *testing.T) {
	t.Parallel()
	w, _ := newRebuiltHarness(t)
	w.mark(t)
	w.losePostgres(t)
	w.outcomes = w.outcomes[:1]
	ctx, cancel := context.WithCancel(t.Context())
	supervisor := w.newSupervisorWith(&completingStore{w.store, cancel}, &replayLog{harness: w}, "w1", recovery.NewEpochTerm())
	supervisor.Drain = 0
	w.notice(t, supervisor, "newer epoch")
	if r, err := supervisor.Rebuild(ctx, "", false, func(string) {}); err == nil {
		t.Fatalf("recovered %+v", r)
	}
	r, err := w.newRebuilder(&replayLog{harness: w}).Rebuild(t.Context(), "", false, func(string) {})
	if err != nil || !r.Resumed {
		t.Errorf("recovered %+v %v", r, err)
	}
	if w.adoptEpoch(t); w.held(t, "room") != 2 {
		t.Errorf("%d held, want 2", w.held(t, "room"))
	}
}

// historyOf returns the replication history of a harness' Redis.
func historyOf(t *testing.T, w *harness) string {
	t.Helper()
	epochs, err := w.store.Epochs(t.Context())
	stacktest.Must(t, err)
	_, history, _ := strings.Cut(common(t, epochs).Server, " ")
	return history
}

// TestRecovery_FailsAllNight_DrawsNoBase repeats resumes and rebuilds that fail. They use up no bases of fencing tokens,
// of which there are few.
func TestRecovery_FailsAllNight_DrawsNoBase(t *testing.T) {
	t.Parallel()
	for _, why := range []string{anotherServer, "a test"} {
		w := newRealTimeHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 5)
		lose := w.markAndCopy(t)
		w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})
		lose()
		drawn := 0
		rebuild := func(l recovery.OutcomeLog) error {
			supervisor := w.newRebuilder(l)
			supervisor.Fence = func(ctx context.Context) (int64, error) {
				drawn++
				return locking.FenceBase(w.store.FenceBase).Next(ctx)
			}
			_, err := supervisor.Rebuild(t.Context(), why, false, func(string) {})
			return err
		}
		for range 3 {
			failing := &replayLog{harness: w, onUnacknowledged: func() error { return errors.New("no such stream") }}
			if err := rebuild(failing); err == nil || drawn > 0 {
				t.Errorf("%s: %v, %d bases drawn", why, err, drawn)
			}
		}
		if err := rebuild(&replayLog{harness: w}); err != nil || drawn != 1 {
			t.Errorf("%s: %v, %d bases drawn", why, err, drawn)
		}
	}
}

// TestResume_Interrupted_NextAttemptIsRight cancels a resume at each of its steps. The next attempt resumes
// until the data was changed, and rebuilds after that.
func TestResume_Interrupted_NextAttemptIsRight(t *testing.T) {
	t.Parallel()
	for step, resumed := range map[string]bool{
		"reading outcomes": true, "waiting for outcomes": true, "reading the holds": true, "writing changes": false,
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newRealTimeHarness(t)
			w.setInventory(t, "room", holds.SlotSelection{}, 5)
			ana := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
			lose := w.markAndCopy(t)
			w.release(t, ana.HoldID, "released")
			w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
			want := w.contents(t)
			lose()
			ctx, cancel := context.WithCancel(t.Context())
			supervisor := w.newRebuilder(&replayLog{harness: w})
			reached := false
			if _, err := supervisor.Rebuild(ctx, anotherServer, false, func(progress string) {
				if strings.HasPrefix(progress, step) {
					reached = true
					cancel()
				}
			}); err == nil || !reached {
				t.Fatalf("interrupted: %v, reached %v", err, reached)
			}
			if r := w.resume(t, &replayLog{}); r.Resumed != resumed {
				t.Errorf("then: %+v", r)
			}
			if got := w.contents(t); !maps.Equal(got, want) {
				t.Errorf("redis has\n%v, want\n%v", got, want)
			}
		})
	}
}

// TestResume_LostMeanwhile_Rebuilds loses all of Redis while it is brought up to date, before anything is changed. It is not
// used, and then rebuilt.
func TestResume_LostMeanwhile_Rebuilds(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	lose := w.markAndCopy(t)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
	want := w.contents(t)
	lose()
	flushing := &replayLog{harness: w, onUnacknowledged: func() error { w.lose(t); return nil }}
	r, err := w.newRebuilder(flushing).Rebuild(t.Context(), anotherServer, false, func(string) {})
	if !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("recovered %+v: %v, want ErrDataLost", r, err)
	}
	if r := w.resume(t, &replayLog{}); r.Resumed || r.Live != 2 {
		t.Errorf("then: %+v", r)
	}
	if got := w.contents(t); !maps.Equal(got, want) {
		t.Errorf("redis has\n%v, want\n%v", got, want)
	}
}

// TestResume_WorkerOfOldEpoch_IsRefused makes Redis lose its last writes after the loss was stored in Postgres
// only, as when the server was away. While it is brought up to date, and afterwards, a worker that has not
// noticed the loss decides nothing.
func TestResume_WorkerOfOldEpoch_IsRefused(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	lose := w.markAndCopy(t)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})
	lose()
	epochs, err := w.store.Epochs(t.Context())
	for p := range epochs {
		epochs[p].Why = anotherServer
	}
	if err == nil {
		_, err = w.store.InvalidateEpochs(t.Context(), record.AllPartitions, &epochs)
	}
	if err != nil {
		t.Fatal(err)
	}
	old := w.service
	refused := func(when string) {
		t.Helper()
		request := holds.PlaceRequest{
			EventID: "old", RequestKey: "old", Resource: "room", User: "ben", Quantity: 1, StoredAt: time.Now(),
		}
		for _, r := range old.Place(t.Context(), []holds.PlaceRequest{request}) {
			if !errors.Is(r.Err, holds.ErrDataLost) {
				t.Errorf("%s: %+v", when, r)
			}
		}
	}
	supervisor := w.newRebuilder(&replayLog{harness: w, onUnacknowledged: func() error {
		refused("meanwhile")
		return nil
	}})
	if r, err := supervisor.Rebuild(t.Context(), "a test", false, func(string) {}); err != nil || !r.Resumed || r.Live != 1 {
		t.Errorf("resumed %+v %v", r, err)
	}
	refused("afterwards")
}

// TestResume_PaymentRejected_ClaimEnds makes Redis lose that a claim was settled after Postgres had rejected its
// payment: the outcome is published, or the payment waits for its answer. The hold is held again.
func TestResume_PaymentRejected_ClaimEnds(t *testing.T) {
	t.Parallel()
	for _, published := range []bool{true, false} {
		w := newHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 1)
		hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		w.claimUndecided(t, hold.HoldID, "p")
		lose := w.markAndCopy(t)
		w.execute(t, "UPDATE inventory SET capacity = 0")
		kept := w.outcomes
		if got := brief(w.pay(t, hold.HoldID, "p")); got != "hold.confirm_rejected sold_out" {
			t.Fatalf("payment: %s", got)
		}
		l := &replayLog{}
		if !published {
			w.outcomes = kept
			request := holds.ConfirmRequest{Hold: hold.HoldID, PaymentID: "p"}
			l.payments = []holds.Payment{{ConfirmRequest: request, At: holds.Time{Time: w.now}}}
		}
		want := w.contents(t)
		lose()
		if r := w.resume(t, l); !r.Resumed {
			t.Errorf("rebuilt %+v", r)
		}
		if got := w.contents(t); !maps.Equal(got, want) {
			t.Errorf("published %v: redis has\n%v, want\n%v", published, got, want)
		}
	}
}

// TestResume_ClaimOlderThanRequestKeyTTL_IsSettled makes Redis lose that a payment was settled whose claim had waited
// for longer than an ended hold is remembered: the claim of a hold, or of a late payment. It is settled again, and
// remembered from then on.
func TestResume_ClaimOlderThanRequestKeyTTL_IsSettled(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		w := newHarness(t)
		w.setPolicy(t, func(p *holds.Policy) {
			p.RequestKeyTTL, p.LatePayment = 2*time.Hour, holds.LateAcceptedIfFree
		})
		w.setInventory(t, "room", holds.SlotSelection{}, 5)
		hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
		if late {
			w.pass(time.Hour)
			w.sweep(t)
		}
		w.claimUndecided(t, hold, "p")
		w.pass(3 * time.Hour)
		lose := w.markAndCopy(t)
		if got := w.pay(t, hold, "p"); got.Event != holds.EventHoldConfirmed {
			t.Fatalf("payment: %s", brief(got))
		}
		want := w.contents(t)
		lose()
		if r := w.resume(t, &replayLog{}); !r.Resumed {
			t.Errorf("rebuilt %+v", r)
		}
		if got := w.contents(t); !maps.Equal(got, want) {
			t.Errorf("late %v: redis has\n%v, want\n%v", late, got, want)
		}
		tombstones := w.client.ZCard(t.Context(), w.key("room", "tombstones")).Val()
		if records := w.client.HLen(t.Context(), w.key("room", "records")).Val(); tombstones != records {
			t.Errorf("late %v: %d of %d records have a tombstone", late, tombstones, records)
		}
	}
}

// TestResume_TooManyPaymentsWait_Rebuilds makes Redis lose its last writes while more payments are above the ack floor
// than a resume keeps in memory.
func TestResume_TooManyPaymentsWait_Rebuilds(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})
	lose := w.markAndCopy(t)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
	lose()
	w.answerPayments(t, 100_001)
	l := &answeredLog{&replayLog{harness: w}, 100_001, func() {}}
	supervisor := w.newRebuilder(l)
	r, err := supervisor.Rebuild(t.Context(), anotherServer, false, func(string) {})
	if err != nil || r.Resumed || r.Live != 2 {
		t.Errorf("recovered %+v %v", r, err)
	}
}

// TestResume_PostgresLostSettledPayment_Rebuilds makes Postgres lose the commit of a payment that Redis has
// settled and that was not published, while Redis restarts. The hold is live again and the payment waits.
func TestResume_PostgresLostSettledPayment_Rebuilds(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	w.mark(t)
	kept := w.outcomes
	if got := brief(w.pay(t, hold.HoldID, "p")); got != "hold.confirmed" {
		t.Fatalf("payment: %s", got)
	}
	w.outcomes = kept
	w.execute(t, "DELETE FROM reservations; DELETE FROM payments")
	request := holds.ConfirmRequest{Hold: hold.HoldID, PaymentID: "p"}
	l := &replayLog{payments: []holds.Payment{{ConfirmRequest: request, At: holds.Time{Time: time.Now()}}}}
	if r := w.resume(t, l); r.Resumed || r.Live != 1 {
		t.Errorf("recovered %+v", r)
	}
	if held := w.held(t, "room"); held != 1 {
		t.Errorf("%d held", held)
	}
}

// TestResume_DataTooOld_Rebuilds makes Redis lose so many writes that it may have forgotten holds which the
// outcomes name. Nothing more is read to bring it up to date.
func TestResume_DataTooOld_Rebuilds(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})
	lose := w.markAndCopy(t)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
	w.pass(13 * time.Hour)
	lose()
	var reads []uint64
	l := &replayLog{onOutcomes: func(_ context.Context, _ time.Time, after uint64) { reads = append(reads, after) }}
	if r := w.resume(t, l); r.Resumed || r.Ended+r.Live != 2 || !slices.Equal(reads[:min(2, len(reads))], []uint64{1, 0}) {
		t.Errorf("recovered %+v, read the outcomes after %d", r, reads)
	}
}

// TestResume_TooManyOutcomes_Rebuilds makes Redis lose more writes than a resume keeps in memory: by their outcomes, and by
// what Redis has of their holds.
func TestResume_TooManyOutcomes_Rebuilds(t *testing.T) {
	t.Parallel()
	for name, losesHolds := range map[string]bool{"two holds": true, "the release of a hold": false} {
		w := newRealTimeHarness(t)
		w.setInventory(t, "room", holds.SlotSelection{}, 5)
		hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
		lose := w.markAndCopy(t)
		if losesHolds {
			w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})
			w.place(t, holds.PlaceRequest{Resource: "room", User: "eve"})
		} else {
			w.release(t, hold.HoldID, "released")
		}
		want := w.contents(t)
		lose()
		supervisor := w.newRebuilder(&replayLog{harness: w})
		supervisor.ResumeBytes = 1000 // about one outcome
		r, err := supervisor.Rebuild(t.Context(), anotherServer, false, func(string) {})
		if err != nil || r.Resumed {
			t.Errorf("%s: recovered %+v %v", name, r, err)
		}
		if got := w.contents(t); !maps.Equal(got, want) {
			t.Errorf("%s: redis has\n%v, want\n%v", name, got, want)
		}
	}
}

// TestResume_MarkerOfEmptyStream_OldOutcomesAreRead makes Redis lose everything since the outbound stream was empty. The
// first outcome after that is so old that a rebuild does not read it.
func TestResume_MarkerOfEmptyStream_OldOutcomesAreRead(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	lose := w.markAndCopy(t)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"}, holds.PlaceRequest{Resource: "room", User: "ben"})
	w.outcomes[0].StoredAt = holds.Time{Time: time.Now().Add(-30 * 24 * time.Hour)}
	lose()
	if r := w.resume(t, &replayLog{}); r.Resumed || r.Outcomes != 1 {
		t.Errorf("recovered %+v", r)
	}
}

// TestRecovery_RedisFull_Ends makes a Redis that is out of memory lose its last writes, or everything. It must be
// recovered: before that no hold ends, and none frees memory.
func TestRecovery_RedisFull_Ends(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"resumed", "rebuilt"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL)
			w.setInventory(t, "room", holds.SlotSelection{}, 5)
			ended := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0]).HoldID
			lose, why := w.markAndCopy(t), anotherServer
			if lost == "rebuilt" {
				lose, why = func() { w.lose(t) }, "a test"
			}
			w.release(t, ended, "released")
			hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0]).HoldID
			lose()
			if err := w.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
			if r := w.recover(t, &replayLog{}, why); r.Resumed != (lost == "resumed") || r.Live != 1 {
				t.Errorf("recovered %+v", r)
			}
			if held := w.held(t, "room"); held != 1 {
				t.Errorf("%d held", held)
			}
			w.release(t, hold, "released-again")
			if held := w.held(t, "room"); held != 0 {
				t.Errorf("%d held after the release", held)
			}
		})
	}
}

// TestMark_EpochOrServerChanged_WritesNothing writes markers under an epoch that a partition does not have any
// more, and on a server that has become master with older data.
func TestMark_EpochOrServerChanged_WritesNothing(t *testing.T) {
	t.Parallel()
	own, other := stacktest.StartRedis(t), stacktest.StartRedis(t)
	w := newHarnessOn(t, own.RedisURL)
	replica := stacktest.ConnectRedis(t, other.RedisURL)
	stacktest.ReplicaOf(t, replica, w.client)
	mark := func(url string) error {
		options := w.newSupervisor(&replayLog{harness: w}, "marker", w.term).SupervisorOptions
		options.Servers = recovery.LoneServer(func() *redis.Options { return stacktest.RedisOptions(url) })
		_, err := recovery.NewMarker(options).Mark(t.Context())
		return err
	}
	history := info(t, w.client, "replication", "master_replid") // a new one with its first replica
	w.term = recovery.StaticTerm(w.epoch, "run "+history)
	if err := mark(own.RedisURL); err != nil {
		t.Fatal(err)
	}
	stacktest.Promote(t, replica)
	if err := mark(other.RedisURL); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("on another server: %v", err)
	}
	key := record.Keyspace(w.namespace).Applied(3)
	w.client.Del(t.Context(), key)
	w.client.Set(t.Context(), record.Keyspace(w.namespace).Epoch(9), "another", 0)
	if err := mark(own.RedisURL); !errors.Is(err, holds.ErrDataLost) {
		t.Errorf("without its epoch: %v", err)
	}
	if w.client.Exists(t.Context(), key).Val() != 0 {
		t.Error("a marker was written")
	}
}

// TestMark_SeveralWorkers_OneWrites lets two workers write markers. Only the first one reads the stream, and
// nothing is written while it does not grow.
func TestMark_SeveralWorkers_OneWrites(t *testing.T) {
	t.Parallel()
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL)
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	options := w.newSupervisor(&replayLog{harness: w}, "first", w.term).SupervisorOptions
	first := recovery.NewMarker(options)
	options.Name = "second"
	second := recovery.NewMarker(options)
	mark := func(m *recovery.Marker, want bool) {
		t.Helper()
		if own, err := m.Mark(t.Context()); err != nil || own != want {
			t.Errorf("writes markers: %v %v, want %v", own, err, want)
		}
	}
	marker := func() string { return w.client.Get(t.Context(), record.Keyspace(w.namespace).Applied(5)).Val() }
	mark(first, true)
	mark(second, false)
	before := marker()
	writes := info(t, w.client, "replication", "master_repl_offset")
	mark(first, true)
	if after := info(t, w.client, "replication", "master_repl_offset"); after != writes || marker() != before {
		t.Errorf("written without need: offset %s, before %s", after, writes)
	}
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})
	mark(first, true)
	history := info(t, w.client, "replication", "master_replid")
	if want := w.epoch + " " + history + " 1790000000000000123.1.1790000000000000124"; marker() != want {
		t.Errorf("marker is %q, want %q", marker(), want)
	}
	if err := w.client.Del(t.Context(), record.Keyspace(w.namespace).Marking(0)).Err(); err != nil { // its lease has ended
		t.Fatal(err)
	}
	mark(second, true)
	mark(first, false)
}

// TestMark_FirstPartitionNotDecided_OneWrites lets two workers write markers on a server of a cluster while nothing is
// decided in its first partition.
func TestMark_FirstPartitionNotDecided_OneWrites(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	options := w.newSupervisor(&replayLog{harness: w}, "first", w.term).SupervisorOptions
	options.Servers = (&shards{urls: [2]string{w.redisURL}, has: [2]record.PartitionSet{record.AllPartitions}}).servers
	w.term.End(1 << 0)
	for _, name := range []string{"first", "second"} {
		options.Name = name
		if own, err := recovery.NewMarker(options).Mark(t.Context()); err != nil || own != (name == "first") {
			t.Errorf("%s writes markers: %v %v", name, own, err)
		}
	}
}

// TestResume_OnePartition_OthersDecide makes one partition lose its last writes. It is brought up to date while
// the others are decided, and they stay as they were.
func TestResume_OnePartition_OthersDecide(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	lost, whole := twoResources()
	for _, resource := range []string{lost, whole} {
		w.setInventory(t, resource, holds.SlotSelection{}, 4)
	}
	w.place(t, holds.PlaceRequest{Resource: lost, User: "ana"}, holds.PlaceRequest{Resource: whole, User: "ana"})
	w.mark(t)
	kept := w.key(lost, "request:kept") // only a rebuild removes it
	if err := w.client.Set(t.Context(), kept, "cancelled - - 1790000000000 - - ", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	p := record.Partition(lost)
	restore, err := stacktest.CopyKeys(t.Context(), w.client, record.Keyspace(w.namespace).Partition(p)+"*")
	if err != nil {
		t.Fatal(err)
	}
	w.place(t, holds.PlaceRequest{Resource: lost, User: "ben"}, holds.PlaceRequest{Resource: whole, User: "ben"})
	epochs, err := w.store.Epochs(t.Context())
	if err == nil {
		epochs[p].Why = anotherServer
		_, err = w.store.InvalidateEpochs(t.Context(), record.PartitionSetOf(p), &epochs)
	}
	if err == nil {
		err = restore(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	w.term = recovery.NewEpochTerm()
	decided := false
	supervisor := w.newSupervisor(&replayLog{harness: w, onUnacknowledged: func() error {
		o, err := w.tryPlace(t, w.service, whole, "meanwhile")
		decided = err == nil && o.Event == holds.EventHoldCreated
		return nil
	}}, "w1", w.term)
	supervisor.Drain = 0
	w.startNewTerm(t)
	stop := w.run(t, supervisor)
	stacktest.Eventually(t, "the partition to be brought up to date", func() bool { return w.term.Paused() == nil })
	stop()
	if n := w.client.Exists(t.Context(), kept).Val(); n != 1 || !decided {
		t.Errorf("partition rebuilt: %v, others decided: %v", n != 1, decided)
	}
	if a, b := w.held(t, lost), w.held(t, whole); a != 2 || b != 3 {
		t.Errorf("%d and %d held, want 2 and 3", a, b)
	}
}
