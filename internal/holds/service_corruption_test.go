package holds_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/holds"
)

// TestSweep_RecordCorrupt_ExpiresOthersAndReports lets three holds lapse, of which the record of one cannot be read. That is told at each
// look, and of each decision on the resource, until it is mended; the others lapse meanwhile.
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
	bad := ids[1] // neither the first nor the last that is swept
	line := w.client.HGet(ctx, key("records"), bad).Val()
	w.client.HSet(ctx, key("records"), bad, "rubbish")
	w.pass(t, 2*time.Minute)
	var reported []string
	w.service.OnCorruption(func(resource string) { reported = append(reported, resource) })
	for range 2 {
		if err := w.expirer.SweepOnly(ctx); !errors.Is(err, holds.ErrCorrupt) {
			t.Fatalf("the sweep says %v", err)
		}
	}
	if !slices.Equal(reported, []string{"room", "room"}) {
		t.Errorf("told of %v", reported)
	}
	if due := w.client.ZRange(ctx, key("due"), 0, -1).Val(); !slices.Equal(due, []string{bad}) {
		t.Errorf("due is %v, want what cannot be read, %s", due, bad)
	}
	if got := w.client.HGet(ctx, key("counts"), "stock").Val(); got != "1" {
		t.Errorf("%s are held, want what cannot be read", got)
	}
	w.service.Place(ctx, []holds.PlaceRequest{{EventID: uuid.NewString(), RequestKey: "k", Resource: "room", User: "dan", Quantity: 1, StoredAt: time.Now()}}, func(_ int, r holds.Result) {
		if !errors.Is(r.Err, holds.ErrCorrupt) {
			t.Errorf("a request is answered %+v", r)
		}
	})
	w.client.HSet(ctx, key("records"), bad, line)
	if err := w.expirer.SweepAndAnnounce(ctx); err != nil {
		t.Fatal(err)
	}
	if got := w.takeAnnounced(); len(got) != 3 {
		t.Errorf("announced %v", briefs(got))
	}
	w.assertNothingHeld(t, "room")
}

// TestService_ResourceCorrupt_DecidesOthers makes something of one resource wrong and has events about it and about another decided
// together, again and again. Those about the other are answered; those about the first wait, and when it is mended all is as if
// nothing had been: nothing was given back or taken twice.
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
		"a number of holds is none": {set("users", "ana", "many"), set("users", "ana", "1")},
		"another number is none":    {set("users", "ben", "1.5"), set("users", "ben", "1")},
		"the users are a list":      {aside("users"), back("users")},
		"a counter is none":         {set("counts", "stock", "x"), set("counts", "stock", "2")},
		"the counters are a list":   {aside("counts"), back("counts")},
		"the deadlines are a list":  {aside("due"), back("due")},
		"the records are a list":    {aside("records"), back("records")},
		"an answer is a list": {
			func(w *harness, key func(string) string) {
				w.client.RPush(context.Background(), key("request:k-dora"), "oops")
			},
			func(w *harness, key func(string) string) { w.client.Del(context.Background(), key("request:k-dora")) },
		},
		"rev is no number":           {set("rev", "", "x"), set("rev", "", "1000")},
		"rev is a list":              {aside("rev"), back("rev")},
		"the record cannot be read":  {corruptRecord("x"), restoreRecord},
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
					do(func(i int, r holds.Result) {
						switch {
						case i == 0 && errors.Is(r.Err, holds.ErrCorrupt):
							corrupt++
						case r.Err != nil:
							t.Errorf("%s on %s: %v", verb, rooms[i], r.Err)
						}
					})
				}
				if corrupt == 0 {
					t.Error("nothing was found to be damaged")
				}
			}
			d.undo(w, key)
			for verb, do := range verbs {
				do(func(i int, r holds.Result) {
					if r.Err != nil {
						t.Errorf("when it is mended, %s on %s: %v", verb, rooms[i], r.Err)
					}
				})
			}
			for _, room := range rooms {
				if got := w.available(t, room, holds.SlotSelection{})[0]; got.Reserved != 1 || got.Held != 1 {
					t.Errorf("of %s %d are reserved and %d held, want 1 of each", room, got.Reserved, got.Held)
				}
				if got := w.client.HGetAll(t.Context(), holds.Key(w.namespace, room, "users")).Val(); len(got) != 2 || got["dora"] != "1" {
					t.Errorf("of %s the users are %v", room, got)
				}
			}
		})
	}
}

// corruptRecord puts something in the place of the record of ana's hold, and readable puts it back.
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

// allVerbs are events of each kind about each of some rooms, decided together: a new hold of dora's, ana's is extended and
// given back, ben's paid, and cleo's reservation cancelled.
func (w *harness) allVerbs(rooms []string, held map[string][]holds.HoldID) map[string]func(emit func(int, holds.Result)) {
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
	return map[string]func(emit func(int, holds.Result)){
		"place":   func(emit func(int, holds.Result)) { w.service.Place(ctx, places, emit) },
		"extend":  func(emit func(int, holds.Result)) { w.service.Extend(ctx, extends, emit) },
		"release": func(emit func(int, holds.Result)) { w.service.Release(ctx, releases, emit) },
		"confirm": func(emit func(int, holds.Result)) { w.service.Confirm(ctx, payments, emit) },
		"cancel":  func(emit func(int, holds.Result)) { w.service.Cancel(ctx, cancels, emit) },
	}
}
