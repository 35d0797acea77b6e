package holds_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"holdfast/internal/holds"
)

// TestSweep_RecordCorrupt_ExpiresOthersAndReports lets three holds expire, one of which has a
// corrupt record. Each sweep and each decision on the resource reports it until it is repaired. The
// others expire.
func TestSweep_RecordCorrupt_ExpiresOthersAndReports(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	key := func(name string) string { return holds.Key(w.namespace, "room", name) }
	w.setInventory(t, "room", holds.SlotSelection{}, 5)
	var ids []string
	for _, user := range []string{"ana", "ben", "cleo"} {
		ids = append(ids, created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: user, TTLSeconds: seconds(60)})[0]).HoldID.UUID)
	}
	slices.Sort(ids)
	bad := ids[1] // neither the first nor the last in the sweep
	line := w.client.HGet(ctx, key("records"), bad).Val()
	w.client.HSet(ctx, key("records"), bad, "rubbish")
	w.pass(t, 2*time.Minute)
	var reported []string
	w.service.OnCorruption(func(resource string) { reported = append(reported, resource) })
	for range 2 {
		if err := w.expirer.SweepOnly(ctx); !errors.Is(err, holds.ErrCorrupt) {
			t.Fatalf("the sweep returns %v", err)
		}
	}
	if !slices.Equal(reported, []string{"room", "room"}) {
		t.Errorf("reported %v", reported)
	}
	if due := w.client.ZRange(ctx, key("due"), 0, -1).Val(); !slices.Equal(due, []string{bad}) {
		t.Errorf("due is %v, want the corrupt hold %s", due, bad)
	}
	if got := w.client.HGet(ctx, key("counts"), "stock").Val(); got != "1" {
		t.Errorf("%s are held, want the corrupt hold", got)
	}
	if r := w.tryPlace(newRequest("room")); !errors.Is(r.Err, holds.ErrCorrupt) {
		t.Errorf("the result of a request is %+v", r)
	}
	w.client.HSet(ctx, key("records"), bad, line)
	if got := w.sweep(t); len(got) != 3 {
		t.Errorf("announced %v", briefs(got))
	}
	w.assertNothingHeld(t, "room")
}

// TestSweep_MetadataCorrupt_OthersAreAnnounced lets two holds expire in one round, one of which has metadata that is no
// JSON. Its outcome could not be encoded.
func TestSweep_MetadataCorrupt_OthersAreAnnounced(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	var bad string
	for _, resource := range []string{"room", "tent"} {
		w.setInventory(t, resource, holds.SlotSelection{}, 1)
		bad = created(t, w.place(t, holds.PlaceRequest{
			Resource: resource, User: "ana", TTLSeconds: seconds(60), Metadata: jsontext.Value(`{"cart":"c"}`),
		})[0]).HoldID.UUID
	}
	records := holds.Key(w.namespace, "tent", "records")
	line := w.client.HGet(t.Context(), records, bad).Val()
	w.client.HSet(t.Context(), records, bad, strings.TrimSuffix(line, "}"))
	w.pass(t, 2*time.Minute)
	var reported []string
	w.service.OnCorruption(func(resource string) { reported = append(reported, resource) })
	if err := w.expirer.SweepOnly(t.Context()); !errors.Is(err, holds.ErrCorrupt) {
		t.Errorf("the sweep returns %v", err)
	}
	if err := w.expirer.AnnounceLate(t.Context(), 0); err != nil && !errors.Is(err, holds.ErrCorrupt) {
		t.Fatal(err)
	}
	if got := w.takeAnnounced(); len(got) != 1 || got[0].Resource != "room" {
		t.Errorf("announced %v", briefs(got))
	}
	if !slices.Equal(reported, []string{"tent"}) {
		t.Errorf("reported %v", reported)
	}
}

// TestService_MetadataCorrupt_Reports decides an event of each kind about a hold whose metadata is no JSON: no script reads
// it. Each decision reports it once, so that it is repaired.
func TestService_MetadataCorrupt_Reports(t *testing.T) {
	t.Parallel()
	request := holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k", Quantity: 1, StoredAt: time.Now(), Metadata: jsontext.Value(`{"cart":"c"}`)}
	for verb, decide := range map[string]func(w *harness, id holds.HoldID) holds.Result{
		"place": func(w *harness, _ holds.HoldID) holds.Result { return w.tryPlace(request) },
		"extend": func(w *harness, id holds.HoldID) holds.Result {
			return w.service.Extend(context.Background(), []holds.ExtendRequest{{EventID: "e", Hold: id, PaymentStarted: true}})[0]
		},
		"confirm": func(w *harness, id holds.HoldID) holds.Result {
			return w.service.Confirm(context.Background(), []holds.ConfirmRequest{{Hold: id, PaymentID: "p"}})[0]
		},
		"release": func(w *harness, id holds.HoldID) holds.Result {
			return w.service.Release(context.Background(), []holds.ReleaseRequest{{EventID: "e", Resource: "room", Hold: id}})[0]
		},
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			w := newRealTimeHarness(t)
			w.setInventory(t, "room", holds.SlotSelection{}, 1)
			id := created(t, w.place(t, request)[0]).HoldID
			records := holds.Key(w.namespace, "room", "records")
			line := w.client.HGet(t.Context(), records, id.UUID).Val()
			w.client.HSet(t.Context(), records, id.UUID, strings.TrimSuffix(line, "}"))
			var reported []string
			w.service.OnCorruption(func(resource string) { reported = append(reported, resource) })
			if r := decide(w, id); !errors.Is(r.Err, holds.ErrCorrupt) {
				t.Errorf("the result is %+v", r)
			}
			if !slices.Equal(reported, []string{"room"}) {
				t.Errorf("reported %v", reported)
			}
		})
	}
}

// TestService_ResourceCorrupt_DecidesOthers corrupts one resource and decides events of it and of
// another resource together, repeatedly. The events of the other resource are answered; those of
// the first wait. After the repair all is as if no corruption had occurred: no count was restored
// or taken twice.
func TestService_ResourceCorrupt_DecidesOthers(t *testing.T) {
	t.Parallel()
	set := func(name, field, value string) func(*harness, func(string) string) {
		return func(w *harness, key func(string) string) {
			ctx := context.Background()
			if field == "" {
				w.client.Set(ctx, key(name), value, 0)
			} else {
				w.client.HSet(ctx, key(name), field, value)
			}
		}
	}
	aside := func(name string) func(*harness, func(string) string) {
		return func(w *harness, key func(string) string) {
			ctx := context.Background()
			w.client.Rename(ctx, key(name), key("aside"))
			w.client.RPush(ctx, key(name), "oops")
		}
	}
	back := func(name string) func(*harness, func(string) string) {
		return func(w *harness, key func(string) string) {
			w.client.Rename(context.Background(), key("aside"), key(name))
		}
	}
	for name, d := range map[string]struct {
		do, undo func(*harness, func(string) string)
	}{
		"a number of holds is not a number": {set("users", "ana", "many"), set("users", "ana", "1")},
		"another number is not an integer":  {set("users", "ben", "1.5"), set("users", "ben", "1")},
		"the users are a list":              {aside("users"), back("users")},
		"a counter is not a number":         {set("counts", "stock", "x"), set("counts", "stock", "2")},
		"the counters are a list":           {aside("counts"), back("counts")},
		"the counters are gone": {
			func(w *harness, key func(string) string) {
				w.client.Rename(context.Background(), key("counts"), key("aside"))
			},
			back("counts"),
		},
		"the deadlines are a list":  {aside("due"), back("due")},
		"the records are a list":    {aside("records"), back("records")},
		"the tombstones are a list": {aside("tombstones"), back("tombstones")},
		"an answer is a list": {
			func(w *harness, key func(string) string) {
				w.client.RPush(context.Background(), key("request:k-dora"), "oops")
			},
			func(w *harness, key func(string) string) { w.client.Del(context.Background(), key("request:k-dora")) },
		},
		"an answer is no answer": {
			set("request:k-dora", "", "oops"),
			func(w *harness, key func(string) string) { w.client.Del(context.Background(), key("request:k-dora")) },
		},
		"an answer names no hold": {
			set("request:k-dora", "", "created - e 1 :5 - "),
			func(w *harness, key func(string) string) { w.client.Del(context.Background(), key("request:k-dora")) },
		},
		"rev is not a number":        {set("rev", "", "x"), set("rev", "", "1000")},
		"rev is a list":              {aside("rev"), back("rev")},
		"the record is not a record": {corruptRecord("x"), restoreRecord},
		"the record has no quantity": {corruptRecord("held 1 1 x 0 - ana k stock {} "), restoreRecord},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRealTimeHarness(t)
			rooms := []string{"room", "hall"}
			held := make(map[string][]holds.HoldID)
			for _, room := range rooms {
				w.setInventory(t, room, holds.SlotSelection{}, 9)
				for _, user := range []string{"ana", "ben", "cleo"} {
					held[room] = append(held[room], created(t, w.place(t, holds.PlaceRequest{Resource: room, User: user})[0]).HoldID)
				}
				w.pay(t, held[room][2], "p-cleo")
			}
			verbs := w.allVerbs(rooms, held)
			key := func(name string) string { return holds.Key(w.namespace, "room", name) }
			d.do(w, key)
			for range 3 {
				corrupt := 0
				for verb, do := range verbs {
					for i, r := range do() {
						switch {
						case i == 0 && errors.Is(r.Err, holds.ErrCorrupt):
							corrupt++
						case r.Err != nil:
							t.Errorf("%s on %s: %v", verb, rooms[i], r.Err)
						}
					}
				}
				if corrupt == 0 {
					t.Error("no corruption was found")
				}
			}
			d.undo(w, key)
			for verb, do := range verbs {
				for i, r := range do() {
					if r.Err != nil {
						t.Errorf("after the repair, %s on %s: %v", verb, rooms[i], r.Err)
					}
				}
			}
			for _, room := range rooms {
				if got := w.available(t, room, holds.SlotSelection{})[0]; got.Reserved != 1 || got.Held != 1 {
					t.Errorf("%s has %d reserved and %d held, want 1 of each", room, got.Reserved, got.Held)
				}
				if got := w.client.HGetAll(t.Context(), holds.Key(w.namespace, room, "users")).Val(); len(got) != 2 || got["dora"] != "1" {
					t.Errorf("the users of %s are %v", room, got)
				}
				if got := w.client.ZCard(t.Context(), holds.Key(w.namespace, room, "tombstones")).Val(); got != 3 {
					t.Errorf("%d of the 3 ended holds of %s are tombstones", got, room)
				}
			}
		})
	}
}

// TestService_DepartingIsNoSet_HoldStaysLive has events find a hold whose deadline has passed, while the set of the holds
// whose end is not announced yet is a list. Nothing ends before it can be remembered there: else no sweep would announce it.
func TestService_DepartingIsNoSet_HoldStaysLive(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	key := func(name string) string { return holds.Key(w.namespace, "room", name) }
	hold := w.onlyHold(t, "room", 60).HoldID
	w.client.RPush(ctx, key("departing"), "oops")
	w.pass(t, 2*time.Minute)
	for verb, decide := range map[string]func() holds.Result{
		"place": func() holds.Result { return w.tryPlace(newRequest("room")) },
		"confirm": func() holds.Result {
			return w.service.Confirm(ctx, []holds.ConfirmRequest{{Hold: hold, PaymentID: "p"}})[0]
		},
		"extend": func() holds.Result {
			return w.service.Extend(ctx, []holds.ExtendRequest{{EventID: "e", Hold: hold, TTLSeconds: 900}})[0]
		},
		"release": func() holds.Result {
			return w.service.Release(ctx, []holds.ReleaseRequest{{EventID: "e", Resource: "room", Hold: hold}})[0]
		},
	} {
		if r := decide(); !errors.Is(r.Err, holds.ErrCorrupt) {
			t.Errorf("the result of %s is %+v", verb, r)
		}
		if record := w.client.HGet(ctx, key("records"), hold.UUID).Val(); !strings.HasPrefix(record, "held ") {
			t.Errorf("after %s the record is %q", verb, record)
		}
	}
	w.client.Del(ctx, key("departing"))
	if got := w.sweep(t); len(got) != 1 || got[0].Hold != hold {
		t.Errorf("announced %v", briefs(got))
	}
	w.assertNothingHeld(t, "room")
}

// TestForget_TombstonesAreNoSet_HoldStaysDeparting stores the hold.expired of a hold while the tombstones of its resource
// are a list. The hold is not forgotten before it can be a tombstone: else its record would stay for ever.
func TestForget_TombstonesAreNoSet_HoldStaysDeparting(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	ctx := t.Context()
	key := func(name string) string { return holds.Key(w.namespace, "room", name) }
	hold := w.onlyHold(t, "room", 60).HoldID
	w.pass(t, 2*time.Minute)
	if err := w.expirer.SweepOnly(ctx); err != nil {
		t.Fatal(err)
	}
	w.client.RPush(ctx, key("tombstones"), "oops")
	if err := w.expirer.AnnounceLate(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if got := w.client.ZRange(ctx, key("departing"), 0, -1).Val(); !slices.Equal(got, []string{hold.UUID}) {
		t.Errorf("departing is %v, want the hold", got)
	}
	w.client.Del(ctx, key("tombstones"))
	w.pass(t, 2*holds.AnnounceLease)
	w.sweep(t)
	if got := w.client.ZRange(ctx, key("tombstones"), 0, -1).Val(); !slices.Equal(got, []string{hold.UUID}) {
		t.Errorf("the tombstones are %v, want the hold", got)
	}
}

// TestRelease_AnswerCorrupt_Waits releases a hold by its request key while the answer to the key is no answer, or names no
// hold.
func TestRelease_AnswerCorrupt_Waits(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k"})
	key, ctx := holds.Key(w.namespace, "room", "request:k"), t.Context()
	answer := w.client.Get(ctx, key).Val()
	release := func() holds.Result {
		return w.service.Release(ctx, []holds.ReleaseRequest{{EventID: uuid.NewString(), Resource: "room", RequestKey: "k"}})[0]
	}
	for _, corrupt := range []string{"oops", "created - e 1"} {
		w.client.Set(ctx, key, corrupt, 0)
		if r := release(); !errors.Is(r.Err, holds.ErrCorrupt) {
			t.Errorf("while the answer is %q: %+v", corrupt, r)
		}
	}
	w.client.Set(ctx, key, answer, 0)
	if r := release(); r.Err != nil || r.Outcome.Event != holds.EventHoldReleased {
		t.Errorf("after the repair: %+v", r)
	}
}

// corruptRecord replaces the record of ana's hold, and restoreRecord restores it.
func corruptRecord(line string) func(*harness, func(string) string) {
	return func(w *harness, key func(string) string) {
		ctx := context.Background()
		for id, was := range w.client.HGetAll(ctx, key("records")).Val() {
			if strings.Contains(was, " ana ") {
				w.client.Set(ctx, key("aside"), id+" "+was, 0)
				w.client.HSet(ctx, key("records"), id, line)
			}
		}
	}
}

func restoreRecord(w *harness, key func(string) string) {
	ctx := context.Background()
	was := w.client.GetDel(ctx, key("aside")).Val()
	w.client.HSet(ctx, key("records"), was[:32], was[33:])
}

// allVerbs decides events of each kind for each of some rooms together: a new hold for dora, ana's
// is extended and released, ben's is paid, and cleo's reservation is cancelled.
func (w *harness) allVerbs(rooms []string, held map[string][]holds.HoldID) map[string]func() iter.Seq2[int, holds.Result] {
	ctx := context.Background()
	var places []holds.PlaceRequest
	var extends []holds.ExtendRequest
	var releases []holds.ReleaseRequest
	var payments []holds.ConfirmRequest
	var cancels []holds.CancelRequest
	for _, room := range rooms {
		its := held[room]
		places = append(places, holds.PlaceRequest{EventID: uuid.NewString(), RequestKey: "k-dora", Resource: room, User: "dora", Quantity: 1, StoredAt: time.Now()})
		extends = append(extends, holds.ExtendRequest{EventID: uuid.NewString(), Hold: its[0], TTLSeconds: 900})
		releases = append(releases, holds.ReleaseRequest{EventID: uuid.NewString(), Resource: room, Hold: its[0]})
		payments = append(payments, holds.ConfirmRequest{Hold: its[1], PaymentID: "p-ben"})
		cancels = append(cancels, holds.CancelRequest{EventID: uuid.NewString(), Hold: its[2]})
	}
	return map[string]func() iter.Seq2[int, holds.Result]{
		"place":   func() iter.Seq2[int, holds.Result] { return w.service.Place(ctx, places) },
		"extend":  func() iter.Seq2[int, holds.Result] { return slices.All(w.service.Extend(ctx, extends)) },
		"release": func() iter.Seq2[int, holds.Result] { return slices.All(w.service.Release(ctx, releases)) },
		"confirm": func() iter.Seq2[int, holds.Result] { return slices.All(w.service.Confirm(ctx, payments)) },
		"cancel":  func() iter.Seq2[int, holds.Result] { return slices.All(w.service.Cancel(ctx, cancels)) },
	}
}
