package holds_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/stack/stacktest"
)

// retold is what a world has told, as a stream tells it again: it implements holds.Chronicle.
type retold struct {
	*world
	shuffle  func([]holds.Told) []holds.Told // nil = as it was told
	payments []holds.Payment                 // that wait, stored at At
	cancels  []waitingCancel
	late     []holds.Told // what comes while Redis is being filled
}

type waitingCancel struct {
	request  holds.ReleaseRequest
	storedAt holds.Time
}

func (c *retold) Outcomes(_ context.Context, _ time.Time, after uint64, each func(holds.Told) error, _ func(done, all uint64)) (last uint64, err error) {
	some := c.told[after:]
	if after == 0 {
		if c.shuffle != nil {
			some = c.shuffle(slices.Clone(some))
		}
	}
	last = uint64(len(c.told))
	for _, told := range some {
		if err := each(told); err != nil {
			return 0, err
		}
	}
	return last, nil
}

func (*retold) Missing(context.Context, time.Time) (string, error) { return "", nil }

func (c *retold) Waiting(_ context.Context, payment func(holds.ConfirmRequest, holds.Time), cancel func(holds.ReleaseRequest, holds.Time)) error {
	c.setClock() // the clock went with everything else
	for _, p := range c.payments {
		payment(p.ConfirmRequest, p.At)
	}
	for _, w := range c.cancels {
		cancel(w.request, w.storedAt)
	}
	c.told, c.late = append(c.told, c.late...), nil
	return nil
}

// setClock writes the world's clock, if it has one.
func (w *world) setClock() {
	if w.now.IsZero() {
		return
	}
	pipe := w.client.Pipeline()
	for _, key := range holds.ClockKeys(w.namespace) {
		pipe.Set(context.Background(), key, w.now.UnixMilli(), 0)
	}
	_, _ = pipe.Exec(context.Background()) // whoever asks the time next notices
}

// newKeeper returns a Keeper of another worker than the world's own.
func (w *world) newKeeper(c holds.Chronicle, name string, tenure *holds.Tenure) *holds.Keeper {
	return w.newKeeperOf(w.store, c, name, tenure)
}

func (w *world) newKeeperOf(r holds.Register, c holds.Chronicle, name string, tenure *holds.Tenure) *holds.Keeper {
	keeper := holds.NewKeeper(holds.KeeperOptions{
		Namespace: w.namespace, Name: name, Policy: w.policy, Tenure: tenure, Guard: holds.NewGuard(),
		Redis:    func() *redis.Options { return stacktest.RedisOptions(w.redisURL) },
		Register: r, Inventory: w.store, Chronicle: c, Log: zerolog.Nop(),
		Fence: locking.FenceBase(w.store.FenceBase).Next,
	})
	keeper.BePatient()
	return keeper
}

// loseAndRebuild removes everything that the world has in Redis, and has it filled again.
func (w *world) loseAndRebuild(t fatal, c *retold) holds.Rebuilt {
	t.Helper()
	ctx := context.Background()
	c.world = w
	keys, err := w.client.Keys(ctx, w.namespace+":*").Result()
	if err == nil && len(keys) > 0 {
		err = w.client.Del(ctx, keys...).Err()
	}
	if err != nil {
		t.Fatalf("lose: %v", err)
	}
	keeper := w.newKeeper(c, "rebuilder", holds.NewTenure())
	keeper.DoNotWait()
	r, err := keeper.Rebuild(ctx, "a test", false, func(string) {})
	if err != nil {
		t.Fatalf("rebuild: %v", err)
	}
	e, err := w.store.Epoch(ctx)
	if err != nil {
		t.Fatalf("epoch: %v", err)
	}
	w.epoch, w.tenure = e.Name, holds.Always(e.Name, e.Server)
	return r
}

// renew has the world decide under its new epoch.
func (w *world) renew(t testing.TB) {
	w.service = w.newService(w.client, w.locker(t), w.store)
	w.expirer = holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop())
}

// TestModelSurvivesLosses does random things to a resource and to the model, and loses everything that
// Redis has in between, as often as not. What was told comes back in any order, and some of it
// twice. The model does not know of losses: everything goes on as if there were none.
func TestModelSurvivesLosses(t *testing.T) {
	t.Parallel()
	for _, late := range []holds.LatePayment{holds.LateRejected, holds.LateAcceptedIfFree} {
		t.Run(string(late), func(t *testing.T) {
			t.Parallel()
			w, conn := newModelWorld(t, late)
			var resources, losses atomic.Int64
			locker := w.locker(t)
			rapid.Check(t, func(rt *rapid.T) {
				resource := fmt.Sprintf("r%d", resources.Add(1))
				m := newModel(w.now, late)
				r := &modelRun{world: w, dry: &world{}, sql: conn, model: m, resource: resource}
				renew := func() {
					w.service = w.newService(w.client, locker, w.store)
					w.expirer = holds.NewExpirer(w.service, w, holds.ExpirerOptions{}, zerolog.Nop())
					r.dry.service = w.service.Dry(w.store.Dry())
				}
				renew()
				w.told = []holds.Told{}
				rt.Repeat(map[string]func(*rapid.T){
					"place": r.placeBatch, "place 2": r.placeBatch, "pay": r.payOne, "release": r.releaseOne, "extend": r.extendOne,
					"cancel": r.cancelOne, "capacity": r.changeCapacity, "time": r.passTime, "sweep": r.sweep, "": r.compare,
					"lose": func(rt *rapid.T) {
						losses.Add(1)
						w.loseAndRebuild(rt, &retold{shuffle: func(told []holds.Told) []holds.Told {
							for _, one := range told {
								if rapid.Bool().Draw(rt, "told twice") {
									told = append(told, one)
								}
							}
							if len(told) == 0 {
								return nil
							}
							return rapid.Permutation(told).Draw(rt, "order")
						}})
						renew()
					},
				})
				r.end(rt)
			})
			if losses.Load() == 0 {
				t.Error("nothing was ever lost")
			}
		})
	}
}

// TestUntold loses Redis while somebody has decided, and died before it was told: what is filled in takes
// no more than there was, and what waits for an answer has the one that there was.
func TestUntold(t *testing.T) {
	t.Parallel()
	const key, payment = "k1", "p1"
	type deed func(t *testing.T, w *world, c *retold, hold holds.HoldID)
	wait := func(t *testing.T, w *world, c *retold, hold holds.HoldID) {
		c.payments = append(c.payments, holds.Payment{ConfirmRequest: holds.ConfirmRequest{Hold: hold, PaymentID: payment}, At: holds.Time{Time: w.now}})
	}
	cancel := func(byKey bool) deed {
		return func(t *testing.T, w *world, c *retold, hold holds.HoldID) {
			r := holds.ReleaseRequest{Cause: "cancelled", Resource: "room", Hold: hold}
			if byKey {
				r.Hold, r.RequestKey = holds.HoldID{}, key
			}
			c.cancels = append(c.cancels, waitingCancel{r, holds.Time{Time: w.now}})
		}
	}
	pass := func(d time.Duration) deed {
		return func(t *testing.T, w *world, _ *retold, _ holds.HoldID) { w.pass(t, d) }
	}
	untold := func(do deed) deed {
		return func(t *testing.T, w *world, c *retold, hold holds.HoldID) {
			kept := w.told
			do(t, w, c, hold)
			w.told = kept
		}
	}
	release := func(t *testing.T, w *world, _ *retold, hold holds.HoldID) {
		w.release(t, holds.ReleaseRequest{Cause: "cancelled", Hold: hold})
	}
	extend := func(t *testing.T, w *world, _ *retold, hold holds.HoldID) {
		if o := w.extend(t, holds.ExtendRequest{Hold: hold, TTLSeconds: 3000}); o.Event != holds.EventHoldExtended {
			t.Fatalf("extended: %s", brief(o))
		}
	}
	sweep := func(t *testing.T, w *world, _ *retold, _ holds.HoldID) {
		if err := w.expirer.SweepAndAnnounce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pay := func(t *testing.T, w *world, _ *retold, hold holds.HoldID) { w.pay(t, hold, payment) }
	other := func(t *testing.T, w *world, _ *retold, _ holds.HoldID) {
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben", RequestKey: "k2"})[0])
	}
	elsewhere := func(t *testing.T, w *world, _ *retold, _ holds.HoldID) {
		w.setInventory(t, "room", slots("other"), 1)
		created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben", RequestKey: "k2", Asked: slots("other")})[0])
	}
	forgetCreated := func(t *testing.T, w *world, c *retold, _ holds.HoldID) {
		w.told = slices.DeleteFunc(w.told, func(told holds.Told) bool { return told.Event == holds.EventHoldCreated })
	}
	backwards := func(t *testing.T, w *world, _ *retold, _ holds.HoldID) { w.now = w.now.Add(-time.Hour) }

	for name, c := range map[string]struct {
		deeds []deed
		state holds.State // of the hold after it was filled in, "" = it is not known
		held  int64
		paid  string // what becomes of a payment then
		asked string // what becomes of the request when it is delivered again
	}{
		"nothing has happened": {
			nil, holds.Held, 1, "hold.confirmed", "hold.created",
		},
		"it was extended": {
			[]deed{extend, pass(40 * time.Minute)}, holds.Held, 1, "hold.confirmed", "hold.created",
		},
		"it was extended, and that was not told": {
			[]deed{untold(extend)}, holds.Held, 1, "hold.confirmed", "hold.created",
		},
		"it was extended, that was not told, and it has lapsed meanwhile": {
			[]deed{untold(extend), pass(40 * time.Minute)}, holds.Expired, 0, "hold.confirm_rejected expired", "hold.created",
		},
		"it was extended, that was not told, and somebody else has other room meanwhile": {
			[]deed{untold(extend), pass(40 * time.Minute), elsewhere, backwards}, holds.Expired, 0, "hold.confirm_rejected expired", "hold.created",
		},
		"a payment waits, and the hold would lapse meanwhile": {
			[]deed{wait, pass(time.Hour)}, holds.Confirming, 1, "hold.confirmed", "hold.created",
		},
		"a payment was claimed": {
			[]deed{wait, untold(func(t *testing.T, w *world, _ *retold, hold holds.HoldID) {
				w.claim(t, hold, payment)
			}), pass(time.Hour)}, holds.Confirming, 1, "hold.confirmed", "hold.created",
		},
		"a payment waits that came too late": {
			[]deed{pass(time.Hour), wait}, holds.Expired, 0, "hold.confirm_rejected expired", "hold.created",
		},
		"a payment waits, and somebody else has had the room meanwhile": {
			[]deed{wait, pass(time.Hour), other}, holds.Expired, 1, "hold.confirm_rejected expired", "hold.created",
		},
		"the same of another slot": {
			[]deed{wait, pass(time.Hour), elsewhere}, holds.Expired, 0, "hold.confirm_rejected expired", "hold.created",
		},
		"a payment was answered in postgres, and not told": {
			[]deed{wait, untold(pay)}, holds.Confirmed, 0, "hold.confirmed", "hold.created",
		},
		"a payment was answered in postgres and not told, and its event is gone": {
			[]deed{untold(pay), pass(time.Hour)}, holds.Confirmed, 0, "hold.confirmed", "hold.created",
		},
		"a payment was told, and waits for its acknowledgement": {
			[]deed{wait, pay}, holds.Confirmed, 0, "hold.confirmed", "hold.created",
		},
		"a cancellation waits": {
			[]deed{cancel(false)}, holds.Released, 0, "hold.confirm_rejected released", "hold.created",
		},
		"a cancellation by key waits": {
			[]deed{cancel(true)}, holds.Released, 0, "hold.confirm_rejected released", "hold.created",
		},
		"it was cancelled, not told, and somebody else has the room": {
			[]deed{cancel(false), untold(release), other}, holds.Released, 1, "hold.confirm_rejected released", "hold.created",
		},
		"a cancellation waits that came too late": {
			[]deed{pass(time.Hour), cancel(false)}, holds.Expired, 0, "hold.confirm_rejected expired", "hold.created",
		},
		"a cancellation was refused, and waits for its acknowledgement": {
			[]deed{cancel(false), pass(time.Hour), release}, holds.Expired, 0, "hold.confirm_rejected expired", "hold.created",
		},
		"it has lapsed, and that was not told": {
			[]deed{pass(time.Hour), untold(sweep)}, holds.Expired, 0, "hold.confirm_rejected expired", "hold.created",
		},
		"it has lapsed, somebody else has the room, and the clock goes back": {
			[]deed{pass(time.Hour), other, backwards}, holds.Expired, 1, "hold.confirm_rejected expired", "hold.created",
		},
		"its creation was not told": {
			[]deed{forgetCreated}, "", 0, "hold.confirm_rejected unknown_hold", "hold.created new",
		},
		"its creation was not told, but its release": {
			[]deed{release, forgetCreated}, holds.Released, 0, "hold.confirm_rejected released", "hold.created replayed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.told = []holds.Told{}
			w.setInventory(t, "room", holds.Asked{}, 1)
			request := holds.PlaceRequest{Cause: "asked", Resource: "room", User: "ana", RequestKey: key}
			first := w.place(t, request)[0]
			hold := created(t, first)
			retelling := &retold{world: w}
			for _, do := range c.deeds {
				do(t, w, retelling, hold.HoldID)
			}
			w.takeAnnounced()
			w.loseAndRebuild(t, retelling)
			w.renew(t)
			view, _, err := w.service.Lookup(t.Context(), hold.HoldID)
			if err != nil || view.State != c.state {
				t.Errorf("the hold is %q %v, want %q", view.State, err, c.state)
			}
			if stock := w.available(t, "room", holds.Asked{}); stock[0].Held != c.held {
				t.Errorf("%d held, want %d", stock[0].Held, c.held)
			}
			sweep(t, w, nil, holds.HoldID{})
			announced := slices.DeleteFunc(w.takeAnnounced(), func(o holds.Outcome) bool { return o.Hold != hold.HoldID })
			if lapsed := c.state == holds.Expired; len(announced) > 1 || lapsed && len(announced) == 0 && !told(w, hold.HoldID, holds.EventHoldExpired) {
				t.Errorf("announced %v", briefs(announced))
			}
			again := w.place(t, request)[0]
			got := brief(again)
			switch data, ok := again.Data.(holds.HoldCreated); {
			case ok && data.HoldID != hold.HoldID:
				got += " new"
			case ok && data.Replayed:
				got += " replayed"
			case ok && letter(t, again) != letter(t, first):
				got += " otherwise"
			}
			if got != c.asked {
				t.Errorf("asked again: %s, want %s", got, c.asked)
			}
			if got := brief(w.pay(t, hold.HoldID, payment)); got != c.paid {
				t.Errorf("paid: %s, want %s", got, c.paid)
			}
		})
	}
}

// TestPaidLateAndNotTold has a hold that lapsed be paid late, and that not be told. What is filled in has
// what the payment has taken again as confirmed, and the hold as expired.
func TestPaidLateAndNotTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setPolicy(t, func(p *holds.Policy) { p.LatePayment = holds.LateAcceptedIfFree })
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	w.pass(t, time.Hour)
	if err := w.expirer.SweepAndAnnounce(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting := []holds.Payment{{ConfirmRequest: holds.ConfirmRequest{Hold: hold.HoldID, PaymentID: "p"}, At: holds.Time{Time: w.now}}}
	kept := w.told
	if got := brief(w.pay(t, hold.HoldID, "p")); got != "hold.confirmed late" {
		t.Fatalf("paid late: %s", got)
	}
	w.told = kept
	records := func() map[string]string {
		return w.client.HGetAll(t.Context(), holds.Key(w.namespace, "room", "records")).Val()
	}
	had := records()
	w.loseAndRebuild(t, &retold{payments: waiting})
	if has := records(); len(had) != 2 || !maps.Equal(has, had) {
		t.Errorf("the records are\n%v, they were\n%v", has, had)
	}
}

// TestComparesWhatWaitsAgain compares while a payment waits that was refused in between: there is no
// difference when Redis is looked at again.
func TestComparesWhatWaitsAgain(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 1)
	hold := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	once := &waitingOnce{retold: &retold{world: w, payments: []holds.Payment{
		{ConfirmRequest: holds.ConfirmRequest{Hold: hold.HoldID, PaymentID: "p"}, At: hold.CreatedAt},
	}}}
	if _, found, err := w.newKeeper(once, "w", holds.NewTenure()).Compare(t.Context(), func(string) {}); err != nil || len(found) != 0 {
		t.Errorf("found %+v %v", found, err)
	}
	if once.asked != 2 {
		t.Errorf("asked %d times what waits", once.asked)
	}
}

// waitingOnce is a Chronicle in which nothing waits any more when it is asked again.
type waitingOnce struct {
	*retold
	asked int
}

func (c *waitingOnce) Waiting(ctx context.Context, payment func(holds.ConfirmRequest, holds.Time), cancel func(holds.ReleaseRequest, holds.Time)) error {
	if c.asked++; c.asked > 1 {
		c.payments = nil
	}
	return c.retold.Waiting(ctx, payment, cancel)
}

// told reports whether something of a hold was told.
func told(w *world, id holds.HoldID, event string) bool {
	return slices.ContainsFunc(w.told, func(told holds.Told) bool { return told.Hold == id && told.Event == event })
}

// claim has a payment claim a hold, and Postgres not answer.
func (w *world) claim(t *testing.T, id holds.HoldID, payment string) {
	t.Helper()
	s := holds.NewService(w.namespace, w.client, w.locker(t), &outage{w.store}, w.tenure, w.policy)
	s.Confirm(t.Context(), []holds.ConfirmRequest{{Hold: id, PaymentID: payment}}, func(_ int, r holds.Result) {
		if !errors.Is(r.Err, errDown) {
			t.Errorf("claimed: %+v", r)
		}
	})
}

// TestToldWhileFilling has an outcome stored after all were read: by one who stood still in the moment
// before it was to be sent. It is filled in as well.
func TestToldWhileFilling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 2)
	first := created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})[0])
	created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: "ben"})[0])
	w.release(t, holds.ReleaseRequest{Hold: first.HoldID})
	late := w.told[1:]
	w.told = slices.Clone(w.told[:1])
	r := w.loseAndRebuild(t, &retold{late: late})
	if r.Live != 1 || r.Ended != 1 || r.Outcomes != 3 {
		t.Errorf("filled in %+v", r)
	}
	w.renew(t)
	if stock := w.available(t, "room", holds.Asked{}); stock[0].Held != 1 {
		t.Errorf("%d held", stock[0].Held)
	}
}

// TestTwoOnTheSameSlots rebuilds what should not be: users who have two holds on the same slots. What is written
// is the same each time, and is what is compared.
func TestTwoOnTheSameSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 100)
	users := holds.Key(w.namespace, "room", "users")
	for i := range 8 {
		user := fmt.Sprintf("user-%d", i)
		for n := range 2 {
			created(t, w.place(t, holds.PlaceRequest{Resource: "room", User: user, RequestKey: fmt.Sprintf("%s-%d", user, n)})[0])
			for _, field := range w.client.HKeys(t.Context(), users).Val() {
				if strings.HasPrefix(field, user+" ") {
					w.client.HDel(t.Context(), users, field)
				}
			}
		}
	}
	before := w.client.HLen(t.Context(), holds.Key(w.namespace, "room", "records")).Val()
	for range 2 {
		w.loseAndRebuild(t, &retold{})
	}
	if after := w.client.HLen(t.Context(), holds.Key(w.namespace, "room", "records")).Val(); after != before || before != 16 {
		t.Errorf("%d records, before %d", after, before)
	}
}

// TestManyHoldsOfOneResource fills in more holds of one resource than are looked at together.
func TestManyHoldsOfOneResource(t *testing.T) {
	t.Parallel()
	const number = 2500
	w := newRealTimeWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, number)
	requests := make([]holds.PlaceRequest, number)
	for i := range requests {
		requests[i] = holds.PlaceRequest{Resource: "room", User: fmt.Sprintf("u%d", i), RequestKey: fmt.Sprintf("k%d", i)}
	}
	for some := range slices.Chunk(requests, 250) {
		for _, o := range w.place(t, some...) {
			created(t, o)
		}
	}
	if r := w.loseAndRebuild(t, &retold{}); r.Live != number {
		t.Errorf("filled in %+v", r)
	}
	if _, found, err := w.newKeeper(&retold{world: w}, "w", holds.NewTenure()).Compare(t.Context(), func(string) {}); err != nil || len(found) != 0 {
		t.Errorf("found %+v %v", found, err)
	}
	w.renew(t)
	if stock := w.available(t, "room", holds.Asked{}); stock[0].Held != number {
		t.Errorf("%d held", stock[0].Held)
	}
}

// TestKeyUsedAgain has a request key used again after its first answer was forgotten. The later answer is
// remembered, in whichever order the two are told.
func TestKeyUsedAgain(t *testing.T) {
	t.Parallel()
	for _, turn := range []func([]holds.Told){func([]holds.Told) {}, slices.Reverse[[]holds.Told]} {
		w := newWorld(t)
		w.told = []holds.Told{}
		w.setInventory(t, "room", holds.Asked{}, 5)
		request := holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k", Quantity: 5}
		first := created(t, w.place(t, request)[0])
		w.release(t, holds.ReleaseRequest{Hold: first.HoldID})
		if err := w.client.Del(t.Context(), holds.Key(w.namespace, "room", "request:k")).Err(); err != nil {
			t.Fatal(err)
		}
		w.pass(t, time.Second)
		second := created(t, w.place(t, request)[0])
		turn(w.told)
		w.loseAndRebuild(t, &retold{})
		w.renew(t)
		if again := created(t, w.place(t, request)[0]); again.HoldID != second.HoldID || !again.Replayed {
			t.Errorf("asked again: %+v", again)
		}
	}
}

// TestOutcomesOfBefore fills Redis from outcomes of a worker that did not store yet what a request asked.
// Who asks with the same key has the same answer, whatever he asks.
func TestOutcomesOfBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.told = []holds.Told{}
	w.setInventory(t, "room", holds.Asked{}, 1)
	request := holds.PlaceRequest{Cause: "first", Resource: "room", User: "ana", RequestKey: "k"}
	refused := holds.PlaceRequest{Cause: "refused", Resource: "room", User: "ben", RequestKey: "k2"}
	first, second := w.place(t, request)[0], w.place(t, refused)[0]
	w.extend(t, holds.ExtendRequest{Hold: first.Hold, PaymentStarted: true})
	for i := range w.told {
		w.told[i].Memory = holds.Memory{}
	}
	w.loseAndRebuild(t, &retold{})
	w.renew(t)
	if again := w.place(t, request)[0]; letter(t, again) != letter(t, first) {
		t.Errorf("delivered again: %s, it was %s", letter(t, again), letter(t, first))
	}
	if again := w.place(t, refused)[0]; letter(t, again) != letter(t, second) {
		t.Errorf("delivered again: %s, it was %s", letter(t, again), letter(t, second))
	}
	other := request
	other.Cause, other.Quantity = "other", 2
	if again := created(t, w.place(t, other)[0]); again.HoldID != first.Hold || !again.Replayed {
		t.Errorf("asked otherwise with the same key: %+v", again)
	}
	// Nobody knows that its payment was started, so it may be once more.
	if o := w.extend(t, holds.ExtendRequest{Hold: first.Hold, PaymentStarted: true}); o.Event != holds.EventHoldExtended {
		t.Errorf("started again: %s", brief(o))
	}
}
