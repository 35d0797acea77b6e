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
	"pgregory.net/rapid"

	"holdfast/internal/holds"
)

// model is what a resource should be, in plain Go and without any of the tricks: no counters,
// no indexes, everything is looked for in a list of all holds that ever were.
type model struct {
	now      time.Time
	capacity map[string]int64
	reserved map[string]int64
	holds    []*modelHold
	answers  map[string]modelAnswer // by request key
	payments map[string]string      // by hold and payment
	lastHold map[holds.HoldID]*modelHold
}

type modelHold struct {
	id       holds.HoldID
	user     string
	slots    []string
	quantity int64
	deadline time.Time
	state    holds.State
	payment  string
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

// place says what must come of a request, as text, and takes the hold that is named by id.
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
		h := &modelHold{id: id, user: user, slots: slots, quantity: quantity, deadline: m.now.Add(ttl), state: holds.Held}
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
	answer := "hold.confirmed"
	switch {
	case h.state == holds.Confirmed:
		answer = "hold.confirm_rejected already_confirmed"
	case h.state == holds.Released:
		answer = "hold.confirm_rejected released"
	case !m.live(h):
		answer = "hold.confirm_rejected expired"
	case slices.ContainsFunc(h.slots, func(slot string) bool { return m.reserved[slot]+h.quantity > m.capacity[slot] }):
		answer = "hold.confirm_rejected sold_out"
	default:
		h.state, h.payment = holds.Confirmed, payment
		for _, slot := range h.slots {
			m.reserved[slot] += h.quantity
		}
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

// tell is an outcome in the words of the model.
func tell(o holds.Outcome) string {
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

// TestAgainstModel does random things to a resource and to the model, and compares every
// outcome and, after each step, what is available. At the end every hold is ended and nothing
// may be left of any.
func TestAgainstModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var resources atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		resource := fmt.Sprintf("r%d", resources.Add(1))
		m := &model{
			now: w.now, capacity: make(map[string]int64), reserved: make(map[string]int64),
			answers: make(map[string]modelAnswer), payments: make(map[string]string), lastHold: make(map[holds.HoldID]*modelHold),
		}
		r := &modelRun{world: w, model: m, resource: resource}
		t.Repeat(map[string]func(*rapid.T){
			"place":    r.placeBatch,
			"place 2":  r.placeBatch, // twice as often
			"pay":      r.payOne,
			"release":  r.releaseOne,
			"capacity": r.changeCapacity,
			"time":     r.passTime,
			"sweep":    r.sweep,
			"":         r.compare,
		})
		r.end(t)
	})
}

type modelRun struct {
	*world
	model     *model
	resource  string
	announced map[holds.HoldID]int
}

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
			Asked:      slots(drawSlots(t)...),
			Quantity:   rapid.Int64Range(1, 3).Draw(t, "quantity"),
			TTLSeconds: &ttl,
		}
	}
	for i, o := range r.place(t, requests...) {
		q := requests[i]
		want := r.model.place(q.User, q.RequestKey, q.Asked.Slots, q.Quantity, time.Duration(*q.TTLSeconds)*time.Second, o.Hold)
		if got := tell(o); got != want {
			t.Fatalf("%s books %d of %v with key %s:\n\tgot  %s\n\twant %s", q.User, q.Quantity, q.Asked.Slots, q.RequestKey, got, want)
		}
	}
}

// drawHold returns one of the holds that ever were, or nil.
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
	if got := brief(r.pay(t, h.id, payment)); got != want {
		t.Fatalf("%s pays for a hold that is %s: got %s, want %s", h.user, h.state, got, want)
	}
}

func (r *modelRun) releaseOne(t *rapid.T) {
	h := r.drawHold(t)
	if h == nil {
		return
	}
	want := r.model.release(h)
	if got := brief(r.release(t, holds.ReleaseRequest{Hold: h.id})); got != want {
		t.Fatalf("%s cancels: got %s, want %s", h.user, got, want)
	}
}

func (r *modelRun) changeCapacity(t *rapid.T) {
	names, capacity := drawSlots(t), rapid.Int64Range(0, 5).Draw(t, "capacity")
	want := r.model.setCapacity(names, capacity)
	if got := brief(r.setInventory(t, r.resource, slots(names...), capacity)); got != want {
		t.Fatalf("capacity %d of %v: got %s, want %s", capacity, names, got, want)
	}
}

func (r *modelRun) passTime(t *rapid.T) {
	r.pass(t, rapid.SampledFrom([]time.Duration{time.Millisecond, 999 * time.Millisecond, time.Second, time.Minute}).Draw(t, "time"))
	r.model.now = r.now
}

func (r *modelRun) sweep(t *rapid.T) {
	if err := r.expirer.SweepAndAnnounce(context.Background()); err != nil {
		t.Fatalf("sweep: %v", err)
	}
	if r.announced == nil {
		r.announced = make(map[holds.HoldID]int)
	}
	for _, o := range r.takeAnnounced() {
		if o.Resource == r.resource {
			r.announced[o.Hold]++
		}
	}
	for _, h := range r.model.holds {
		lapsed, times := h.state == holds.Held && !r.model.live(h), r.announced[h.id]
		if lapsed && times != 1 || !lapsed && times != 0 {
			t.Fatalf("hold %s, %s until %v, was announced expired %d times at %v", h.id, h.state, h.deadline, times, r.now)
		}
	}
}

func (r *modelRun) compare(t *rapid.T) {
	for _, slot := range r.available(t, r.resource, slots(modelSlots...)) {
		capacity, reserved, held := r.model.capacity[slot.Slot], r.model.reserved[slot.Slot], r.model.held(slot.Slot)
		want := holds.SlotAvailability{
			SlotStock: holds.SlotStock{Slot: slot.Slot, Capacity: capacity, Reserved: reserved, Held: held},
			Available: max(0, capacity-reserved-held),
		}
		if slot != want {
			t.Fatalf("available: got %+v, want %+v", slot, want)
		}
	}
}

// end lets every hold end and checks that nothing is left.
func (r *modelRun) end(t *rapid.T) {
	r.pass(t, 2*time.Minute)
	r.model.now = r.now
	r.sweep(t)
	r.compare(t)
	r.atRest(t, r.resource)
}

// TestSameEventSameOutcome decides the same events several times, at once and one after the
// other, as redelivery does: the outcomes must be equal to the last detail.
func TestSameEventSameOutcome(t *testing.T) {
	t.Parallel()
	w := newRealTimeWorld(t)
	w.setInventory(t, "hall", slots(modelSlots...), 2)
	var requests []holds.PlaceRequest
	for i := range 40 {
		requests = append(requests, holds.PlaceRequest{
			Cause: uuid.NewString(), RequestKey: fmt.Sprintf("k%d", i), Resource: "hall",
			User: fmt.Sprintf("u%d", i%20), Asked: slots(modelSlots[i%4:]...), StoredAt: time.Now(), Quantity: 1,
			Metadata: []byte(fmt.Sprintf(`{"n":%d}`, i)),
		})
	}
	outcomes := make(chan []holds.Outcome, 4)
	for range cap(outcomes) {
		go func() {
			got := make([]holds.Outcome, len(requests))
			w.service.Place(context.Background(), slices.Clone(requests), func(i int, r holds.Result) {
				if r.Err == nil {
					got[i] = r.Outcome
				}
			})
			outcomes <- got
		}()
	}
	first := <-outcomes
	for range cap(outcomes) - 1 {
		for i, o := range <-outcomes {
			if got, want := letter(t, o), letter(t, first[i]); got != want {
				t.Errorf("request %d was answered\n\t%s\nand\n\t%s", i, want, got)
			}
		}
	}
	kinds := make(map[string]int)
	for _, o := range first {
		kinds[strings.Fields(brief(o))[0]]++
	}
	if len(kinds) != 2 {
		t.Errorf("want grants and refusals, got %v", slices.Collect(maps.Keys(kinds)))
	}
}

// letter is an outcome to the letter.
func letter(t *testing.T, o holds.Outcome) string {
	t.Helper()
	data, err := json.Marshal(o.Data)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %s %s %s %s", o.Event, o.Resource, o.Hold, o.At.Format(holds.TimeFormat), data)
}
