package holds_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// model is a simple model of a resource in plain Go. It has no counters and no indexes: it searches
// a list of all holds that ever existed.
type model struct {
	now      time.Time
	capacity map[string]int64
	reserved map[string]int64
	holds    []*modelHold
	answers  map[string]modelAnswer // by request key
	payments map[string]string      // by hold and payment
	lastHold map[holds.HoldID]*modelHold
	late     holds.LatePayment
}

func newModel(now time.Time, late holds.LatePayment) *model {
	return &model{
		now: now, capacity: make(map[string]int64), reserved: make(map[string]int64), late: late,
		answers: make(map[string]modelAnswer), payments: make(map[string]string), lastHold: make(map[holds.HoldID]*modelHold),
	}
}

type modelHold struct {
	id       holds.HoldID
	user     string
	slots    []string
	quantity int64
	created  time.Time
	deadline time.Time
	state    holds.State
	started  bool
	reserved bool // it was paid, in time or late
	returned bool // the reservation was cancelled
}

type modelAnswer struct {
	content, text string
}

func (m *model) live(h *modelHold) bool { return h.state == holds.Held && h.deadline.After(m.now) }

func (m *model) held(slot string) (sum int64) {
	for _, h := range m.holds {
		if m.live(h) && slices.Contains(h.slots, slot) {
			sum += h.quantity
		}
	}
	return sum
}

// place returns the expected outcome of a request as text. If it is granted, place adds the hold
// with this id.
func (m *model) place(user, key string, slots []string, quantity int64, ttl time.Duration, id holds.HoldID) string {
	slots = slices.Sorted(slices.Values(slots))
	content := fmt.Sprint(user, slots, quantity, ttl)
	if answer, known := m.answers[key]; known {
		if answer.content != content {
			return "hold.rejected request_key_reused"
		}
		return answer.text + " replayed"
	}
	text := m.refusal(user, slots, quantity)
	if text == "" {
		h := &modelHold{id: id, user: user, slots: slots, quantity: quantity, created: m.now, deadline: m.now.Add(ttl), state: holds.Held}
		m.holds = append(m.holds, h)
		m.lastHold[id] = h
		text = fmt.Sprintf("hold.created %s %d", id, h.deadline.UnixMilli())
	}
	m.answers[key] = modelAnswer{content, text}
	return text
}

func (m *model) refusal(user string, slots []string, quantity int64) string {
	count := 0
	for _, h := range m.holds {
		if m.live(h) && h.user == user {
			if slices.Equal(h.slots, slots) {
				return "hold.rejected already_holding " + h.id.String()
			}
			count++
		}
	}
	if count >= testPolicy.HoldsPerUser {
		return "hold.rejected hold_limit"
	}
	for _, slot := range slots {
		if _, known := m.capacity[slot]; !known {
			return "hold.rejected unknown_resource"
		}
	}
	var short []string
	helps := true
	for _, slot := range slots {
		if m.reserved[slot]+m.held(slot)+quantity > m.capacity[slot] {
			short = append(short, slot)
			helps = helps && m.reserved[slot]+quantity <= m.capacity[slot]
		}
	}
	if short == nil {
		return ""
	}
	text := "hold.rejected sold_out"
	for _, slot := range short {
		text += fmt.Sprintf(" %s:%d/%d/%d", slot, m.capacity[slot], m.reserved[slot], m.held(slot))
	}
	var retry time.Time
	for _, h := range m.holds {
		overlaps := slices.ContainsFunc(short, func(slot string) bool { return slices.Contains(h.slots, slot) })
		if helps && m.live(h) && overlaps && (retry.IsZero() || h.deadline.Before(retry)) {
			retry = h.deadline
		}
	}
	if retry.IsZero() {
		return text + " never"
	}
	return fmt.Sprintf("%s %d", text, retry.UnixMilli())
}

func (m *model) pay(h *modelHold, payment string) string {
	key := h.id.String() + " " + payment
	if answer, known := m.payments[key]; known {
		return answer
	}
	short := func(held bool) bool {
		return slices.ContainsFunc(h.slots, func(slot string) bool {
			taken := m.reserved[slot]
			if held {
				taken += m.held(slot)
			}
			return taken+h.quantity > m.capacity[slot]
		})
	}
	answer := "hold.confirmed"
	reserve := func() {
		h.reserved = true
		for _, slot := range h.slots {
			m.reserved[slot] += h.quantity
		}
	}
	switch {
	case h.reserved:
		answer = "hold.confirm_rejected already_confirmed"
	case h.state == holds.Released:
		answer = "hold.confirm_rejected released"
	case !m.live(h) && m.late == holds.LateRejected:
		answer = "hold.confirm_rejected expired"
	case short(!m.live(h)):
		answer = "hold.confirm_rejected sold_out"
	case !m.live(h):
		answer = "hold.confirmed late"
		reserve()
	default:
		h.state = holds.Confirmed
		reserve()
	}
	m.payments[key] = answer
	return answer
}

func (m *model) release(h *modelHold) string {
	switch {
	case h.state == holds.Confirmed:
		return "hold.release_rejected confirmed"
	case h.state == holds.Released:
		return "hold.release_rejected released"
	case !m.live(h):
		return "hold.release_rejected expired"
	}
	h.state = holds.Released
	return "hold.released"
}

func (m *model) extend(h *modelHold, ttl time.Duration, started bool) string {
	deadline := m.now.Add(ttl)
	switch {
	case h.state != holds.Held:
		return "hold.extension_rejected " + string(h.state)
	case !m.live(h):
		return "hold.extension_rejected expired"
	case started && h.started:
		return "hold.extension_rejected already_started"
	case deadline.After(h.deadline) && deadline.After(h.created.Add(testPolicy.HoldLifetimeMax)):
		return "hold.extension_rejected limit_reached"
	}
	h.started = h.started || started
	if deadline.After(h.deadline) {
		h.deadline = deadline
	}
	return "hold.extended"
}

func (m *model) cancelReservation(h *modelHold) string {
	switch {
	case !h.reserved:
		return "reservation.cancel_rejected unknown_reservation"
	case h.returned:
		return "reservation.cancel_rejected already_cancelled"
	}
	h.returned = true
	for _, slot := range h.slots {
		m.reserved[slot] -= h.quantity
	}
	return "reservation.cancelled"
}

func (m *model) setCapacity(slots []string, capacity int64) string {
	for _, slot := range slots {
		if m.reserved[slot] > capacity {
			return "inventory.rejected below_reserved"
		}
	}
	for _, slot := range slots {
		m.capacity[slot] = capacity
	}
	return "inventory.updated"
}

// modelText returns an outcome in the format of the model.
func modelText(o holds.Outcome) string {
	text := brief(o)
	switch data := o.Data.(type) {
	case holds.HoldCreated:
		text += fmt.Sprintf(" %s %d", data.HoldID, data.ExpiresAt.UnixMilli())
		if data.Replayed {
			text += " replayed"
		}
	case holds.HoldRejected:
		if data.Reason == holds.ReasonAlreadyHolding {
			text += " " + data.HoldID.String()
		}
		if data.SoldOut != nil {
			for _, row := range data.Unavailable {
				text += fmt.Sprintf(" %s:%d/%d/%d", row.Slot, row.Capacity, row.Reserved, row.Held)
			}
			if data.RetryAt == nil {
				text += " never"
			} else {
				text += fmt.Sprintf(" %d", data.RetryAt.UnixMilli())
			}
		}
		if data.Replayed {
			text += " replayed"
		}
	}
	return text
}

// TestModel_RandomEvents_SameOutcomes applies random events to a resource and to the model. It
// compares every outcome and, after each step, the availability. Each event is first dry-run, which
// must have the same outcome and change nothing. At the end all holds end, and no data of them may
// remain.
func TestModel_RandomEvents_SameOutcomes(t *testing.T) {
	againstModel(t, func(rt *rapid.T, r *modelRun) { rt.Repeat(r.actions()) })
}

// againstModel runs random histories, with both policies for late payments, each on a resource of its own. do
// applies events. At the end of a history all holds end.
func againstModel(t *testing.T, do func(*rapid.T, *modelRun)) {
	t.Helper()
	t.Parallel()
	for _, late := range []holds.LatePayment{holds.LateRejected, holds.LateAcceptedIfFree} {
		t.Run(string(late), func(t *testing.T) {
			t.Parallel()
			w, conn := newModelHarness(t, late)
			locker := w.locker(t)
			var resources atomic.Int64
			rapid.Check(t, func(rt *rapid.T) {
				resource := fmt.Sprintf("r%d", resources.Add(1))
				r := &modelRun{harness: w, dry: &harness{}, sql: conn, model: newModel(w.now, late), resource: resource}
				r.renew = func() {
					w.serve(w.client, locker)
					r.dry.service = w.service.Dry(w.store.Dry())
				}
				r.renew()
				do(rt, r)
				r.end(rt)
			})
		})
	}
}

// newModelHarness returns a harness that can be compared with a model, and a connection to its
// schema.
func newModelHarness(t *testing.T, late holds.LatePayment) (*harness, *pgx.Conn) {
	t.Helper()
	w := newHarnessOn(t, stacktest.StartRedis(t).RedisURL).stopClock(t) // the test reads all keys of the server many times
	w.pass(t, 24*time.Hour)                                             // so that no key expires by Redis' own clock during the test
	w.setPolicy(t, func(p *holds.Policy) {
		p.LatePayment = late
		p.RequestKeyTTL = 10_000 * time.Hour // nothing is forgotten during a run
	})
	conn := w.connect(t)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return w, conn
}

// actions returns the events that a history consists of, and what is compared after each.
func (r *modelRun) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"place":    r.placeBatch,
		"place 2":  r.placeBatch, // twice as often
		"pay":      r.payOne,
		"release":  r.releaseOne,
		"extend":   r.extendOne,
		"cancel":   r.cancelOne,
		"capacity": r.changeCapacity,
		"time":     r.passTime,
		"sweep":    r.sweep,
		"":         r.compare,
	}
}

type modelRun struct {
	*harness
	dry       *harness // decides without changes
	renew     func()   // gives both a new service, under the present epoch
	sql       *pgx.Conn
	model     *model
	resource  string
	announced map[holds.HoldID]int
}

// dryThenReal dry-runs an event and then applies it. The dry run must have the same outcome and
// change nothing.
func (r *modelRun) dryThenReal(t *rapid.T, do func(w *harness) holds.Outcome) holds.Outcome {
	r.available(t, r.resource, holds.SlotSelection{}) // expires the due holds before the dry run
	before := r.storedText(t)
	dry := do(r.dry)
	if after := r.storedText(t); after != before {
		t.Fatalf("the dry run has changed data: %s\n\tbefore %s\n\tafter  %s", brief(dry), before, after)
	}
	really := do(r.harness)
	if brief(dry) != brief(really) {
		t.Fatalf("outcome of the dry run %s, real outcome %s", brief(dry), brief(really))
	}
	return really
}

// storedText returns all stored data of the resource.
func (r *modelRun) storedText(t *rapid.T) string {
	ctx := context.Background()
	keys, err := readAllKeys.Run(ctx, r.client, nil, holds.Key(r.namespace, r.resource, "*")).Text()
	stacktest.Must(t, err)
	var rows string
	stacktest.Must(t, r.sql.QueryRow(ctx, `SELECT concat(
		(SELECT string_agg(i::text, ';' ORDER BY slot) FROM inventory AS i WHERE resource_id = $1),
		(SELECT string_agg(r::text, ';' ORDER BY hold_id) FROM reservations AS r WHERE resource_id = $1),
		(SELECT string_agg(p::text, ';' ORDER BY hold_id, payment_id) FROM payments AS p WHERE starts_with(hold_id, $1 || '.')),
		(SELECT count(*) FROM event_answers WHERE resource_id = $1))`, r.resource).Scan(&rows))
	return keys + rows
}

// readAllKeys reads the value and the expiry of all keys with a pattern.
var readAllKeys = redis.NewScript(`
local text, keys = {}, redis.call('KEYS', ARGV[1])
table.sort(keys)
for _, key in ipairs(keys) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'string' then
    value = redis.call('GET', key)
  elseif kind == 'zset' then
    value = cjson.encode(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'))
  else
    local fields, values = redis.call('HKEYS', key), {}
    table.sort(fields)
    for i, field in ipairs(fields) do values[i] = field .. ' ' .. redis.call('HGET', key, field) end
    value = table.concat(values, ' ')
  end
  text[#text + 1] = key .. ' ' .. value .. ' ' .. redis.call('PEXPIRETIME', key)
end
return table.concat(text, '\\n')`)

var (
	modelSlots = []string{"A-1", "A-2", "A-3", "A-4"}
	modelUsers = []string{"ana", "ben", "cleo"}
)

func drawSlots(t *rapid.T) []string {
	n := rapid.IntRange(1, len(modelSlots)).Draw(t, "slots")
	return rapid.Permutation(modelSlots).Draw(t, "order")[:n]
}

func (r *modelRun) placeBatch(t *rapid.T) {
	requests := make([]holds.PlaceRequest, rapid.IntRange(1, 4).Draw(t, "batch"))
	for i := range requests {
		ttl := rapid.SampledFrom([]int64{1, 2, 5, 60}).Draw(t, "ttl")
		requests[i] = holds.PlaceRequest{
			Resource:   r.resource,
			User:       rapid.SampledFrom(modelUsers).Draw(t, "user"),
			RequestKey: fmt.Sprintf("k%d", rapid.IntRange(1, 40).Draw(t, "key")),
			Selection:  slots(drawSlots(t)...),
			Quantity:   rapid.Int64Range(1, 3).Draw(t, "quantity"),
			TTLSeconds: &ttl,
		}
	}
	outcomes := []holds.Outcome{r.dryThenReal(t, func(w *harness) holds.Outcome { return w.place(t, requests[0])[0] })}
	outcomes = append(outcomes, r.place(t, requests[1:]...)...)
	for i, o := range outcomes {
		q := requests[i]
		want := r.model.place(q.User, q.RequestKey, q.Selection.Slots, q.Quantity, time.Duration(*q.TTLSeconds)*time.Second, o.Hold)
		if got := modelText(o); got != want {
			t.Fatalf("%s books %d of %v with key %s:\n\tgot  %s\n\twant %s", q.User, q.Quantity, q.Selection.Slots, q.RequestKey, got, want)
		}
	}
}

// drawHold returns one of the holds that ever existed, or nil.
func (r *modelRun) drawHold(t *rapid.T) *modelHold {
	if len(r.model.holds) == 0 {
		return nil
	}
	return rapid.SampledFrom(r.model.holds).Draw(t, "hold")
}

func (r *modelRun) payOne(t *rapid.T) {
	h := r.drawHold(t)
	if h == nil {
		return
	}
	payment := fmt.Sprintf("p%d", rapid.IntRange(1, 2).Draw(t, "payment"))
	want := r.model.pay(h, payment)
	if got := brief(r.dryThenReal(t, func(w *harness) holds.Outcome { return w.pay(t, h.id, payment) })); got != want {
		t.Fatalf("%s pays for a hold in state %s: got %s, want %s", h.user, h.state, got, want)
	}
}

func (r *modelRun) releaseOne(t *rapid.T) {
	h := r.drawHold(t)
	if h == nil {
		return
	}
	want := r.model.release(h)
	release := func(w *harness) holds.Outcome { return w.release(t, holds.ReleaseRequest{Hold: h.id}) }
	if got := brief(r.dryThenReal(t, release)); got != want {
		t.Fatalf("%s cancels: got %s, want %s", h.user, got, want)
	}
}

func (r *modelRun) extendOne(t *rapid.T) {
	h := r.drawHold(t)
	if h == nil {
		return
	}
	q := holds.ExtendRequest{Hold: h.id, PaymentStarted: rapid.Bool().Draw(t, "started")}
	ttl := testPolicy.PaymentWindow
	if !q.PaymentStarted {
		q.TTLSeconds = rapid.SampledFrom([]int64{1, 60, 3600}).Draw(t, "ttl")
		ttl = time.Duration(q.TTLSeconds) * time.Second
	}
	want := r.model.extend(h, ttl, q.PaymentStarted)
	o := r.dryThenReal(t, func(w *harness) holds.Outcome { return w.extend(t, q) })
	if got := brief(o); got != want {
		t.Fatalf("%s extends by %v: got %s, want %s", h.user, ttl, got, want)
	}
	if data, extended := o.Data.(holds.HoldExtended); extended && !data.ExpiresAt.Equal(h.deadline) {
		t.Fatalf("%s extends by %v: to %v, want %v", h.user, ttl, data.ExpiresAt, h.deadline)
	}
}

func (r *modelRun) cancelOne(t *rapid.T) {
	h := r.drawHold(t)
	if h == nil {
		return
	}
	want := r.model.cancelReservation(h)
	cancel := func(w *harness) holds.Outcome { return w.cancelReservation(t, holds.CancelRequest{Hold: h.id}) }
	if got := brief(r.dryThenReal(t, cancel)); got != want {
		t.Fatalf("the reservation of %s is cancelled: got %s, want %s", h.user, got, want)
	}
}

func (r *modelRun) changeCapacity(t *rapid.T) {
	names, capacity := drawSlots(t), rapid.Int64Range(0, 5).Draw(t, "capacity")
	want := r.model.setCapacity(names, capacity)
	change := func(w *harness) holds.Outcome { return w.setInventory(t, r.resource, slots(names...), capacity) }
	if got := brief(r.dryThenReal(t, change)); got != want {
		t.Fatalf("capacity %d of %v: got %s, want %s", capacity, names, got, want)
	}
}

func (r *modelRun) passTime(t *rapid.T) {
	r.pass(t, rapid.SampledFrom([]time.Duration{time.Millisecond, 999 * time.Millisecond, time.Second, time.Minute, 40 * time.Minute}).Draw(t, "time"))
	r.model.now = r.now
}

func (r *modelRun) sweep(t *rapid.T) {
	if r.announced == nil {
		r.announced = make(map[holds.HoldID]int)
	}
	for _, o := range r.harness.sweep(t) {
		if o.Resource == r.resource {
			r.announced[o.Hold]++
		}
	}
	for _, h := range r.model.holds {
		expired, times := h.state == holds.Held && !r.model.live(h), r.announced[h.id]
		if expired && times != 1 || !expired && times != 0 {
			t.Fatalf("hold %s, %s until %v, was announced expired %d times at %v", h.id, h.state, h.deadline, times, r.now)
		}
	}
}

func (r *modelRun) compare(t *rapid.T) {
	for _, slot := range r.available(t, r.resource, slots(modelSlots...)) {
		capacity, reserved, held := r.model.capacity[slot.Slot], r.model.reserved[slot.Slot], r.model.held(slot.Slot)
		_, known := r.model.capacity[slot.Slot]
		want := holds.SlotAvailability{
			SlotCounts: holds.SlotCounts{Slot: slot.Slot, Capacity: capacity, Reserved: reserved, Held: held},
			Available:  max(0, capacity-reserved-held), Known: known,
		}
		if slot != want {
			t.Fatalf("available: got %+v, want %+v", slot, want)
		}
	}
}

// end lets every hold end and checks that no data remains.
func (r *modelRun) end(t *rapid.T) {
	r.pass(t, 2*testPolicy.HoldLifetimeMax)
	r.model.now = r.now
	r.sweep(t)
	r.compare(t)
	r.assertNothingHeld(t, r.resource)
}

// TestPlace_EventDecidedTwice_SameOutcome decides the same events several times, at the same time
// and one after the other, like redeliveries. The outcomes must be identical.
func TestPlace_EventDecidedTwice_SameOutcome(t *testing.T) {
	t.Parallel()
	w := newRealTimeHarness(t)
	w.setInventory(t, "hall", slots(modelSlots...), 2)
	var requests []holds.PlaceRequest
	for i := range 40 {
		requests = append(requests, holds.PlaceRequest{
			EventID: uuid.NewString(), RequestKey: fmt.Sprintf("k%d", i), Resource: "hall",
			User: fmt.Sprintf("u%d", i%20), Selection: slots(modelSlots[i%4:]...), StoredAt: time.Now(), Quantity: 1,
			Metadata: []byte(fmt.Sprintf(`{"n":%d}`, i)),
		})
	}
	outcomes := make(chan []holds.Outcome, 4)
	for range cap(outcomes) {
		go func() {
			got := make([]holds.Outcome, len(requests))
			for i, r := range w.service.Place(context.Background(), slices.Clone(requests)) {
				if r.Err == nil {
					got[i] = r.Outcome
				}
			}
			outcomes <- got
		}()
	}
	first := <-outcomes
	for range cap(outcomes) - 1 {
		for i, o := range <-outcomes {
			if got, want := exactText(t, o), exactText(t, first[i]); got != want {
				t.Errorf("request %d has the outcomes\n\t%s\nand\n\t%s", i, want, got)
			}
		}
	}
	kinds := make(map[string]int)
	for _, o := range first {
		kinds[strings.Fields(brief(o))[0]]++
	}
	if len(kinds) != 2 {
		t.Errorf("want created and rejected holds, got %v", slices.Collect(maps.Keys(kinds)))
	}
}

// exactText returns all details of an outcome.
func exactText(t *testing.T, o holds.Outcome) string {
	t.Helper()
	data, err := json.Marshal(o.Data)
	stacktest.Must(t, err)
	return fmt.Sprintf("%s %s %s %s %s", o.Event, o.Resource, o.Hold, o.At.Format(holds.TimeFormat), data)
}
