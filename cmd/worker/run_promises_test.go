package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

var seat = holds.SlotSelection{Slots: []string{"A-12"}}

// TestOneSeat_ThousandRequests_OneGranted sends a thousand requests for one seat to three worker
// processes.
func TestOneSeat_ThousandRequests_OneGranted(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for range 3 {
		s.startWorker()
	}
	s.setInventory("hall", seat, 1)
	const people = 1000
	var requests sync.WaitGroup
	for i := range people {
		requests.Go(func() {
			s.book("hall", fmt.Sprintf("u%d", i), fmt.Sprintf("k%d", i), seat, 600)
		})
	}
	requests.Wait()
	s.await("an outcome for each",
		func(outcomes []events.Envelope, _ []nats.Header) bool { return len(outcomes) >= people+1 })
	created, refused := s.ofType(holds.EventHoldCreated), s.ofType(holds.EventHoldRejected)
	if len(created) != 1 || len(refused) != people-1 {
		t.Errorf("%d created, %d rejected, want 1 and %d", len(created), len(refused), people-1)
	}
	for _, o := range refused {
		if data := decoded[holds.HoldRejected](t, o); data.Reason != holds.ReasonSoldOut || data.RetryAt == nil {
			t.Fatalf("rejected for %s, retry at %v", data.Reason, data.RetryAt)
		}
	}
	if got := s.counts("hall"); len(got) != 1 || got["A-12"] != "1" {
		t.Errorf("counts are %v", got)
	}
}

// TestPlace_OverlappingStays_NeverOverCapacity has 64 publishers request overlapping stays of 1 to
// 30 nights. Some are paid, some cancelled, some expire. It recomputes from the outcomes alone how
// many rooms were taken at each moment.
func TestPlace_OverlappingStays_NeverOverCapacity(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for range 3 {
		s.startWorker()
	}
	load := newSale(s, "double")
	load.nights, load.longest, load.capacity = 60, 30, 7
	end := load.start(64)
	s.await("the outcomes of 64 publishers", func(outcomes []events.Envelope, _ []nats.Header) bool { return len(outcomes) >= 64*30 })
	end()
	load.check()
	if got := s.counts("double"); len(got) != 0 {
		t.Errorf("all holds have ended and counts are %v", got)
	}
}

// recomputeTaken returns the most that was taken of each slot at any moment, recomputed from
// outcomes. A hold takes its slots from created_at until it is released or its deadline passes. A
// confirmed hold takes them for ever; if its reservation was cancelled, until confirmed_at, because
// no outcome has the exact time at which the slots became free. It also checks that each hold ended
// once.
func recomputeTaken(t testing.TB, outcomes []events.Envelope) map[string]int {
	t.Helper()
	type change struct {
		at   time.Time
		by   int
		slot string
	}
	var changes []change
	ended := make(map[string]int)
	take := func(hold holds.HoldData, at holds.Time, sign int) {
		in, err := time.Parse(holds.DateFormat, hold.CheckIn)
		for night := in; err == nil && night.Format(holds.DateFormat) != hold.CheckOut; night = night.AddDate(0, 0, 1) {
			changes = append(changes, change{at.Time, sign * int(*hold.Quantity), night.Format(holds.DateFormat)})
		}
	}
	cancelled := make(map[string]bool)
	for _, o := range outcomes {
		if o.Type == events.Type(holds.EventReservationCancelled) {
			cancelled[o.Subject] = true
		}
	}
	for _, o := range outcomes {
		switch o.Type {
		case events.Type(holds.EventHoldCreated):
			data := decoded[holds.HoldCreated](t, o)
			take(data.HoldData, data.CreatedAt, 1)
		case events.Type(holds.EventHoldReleased):
			data := decoded[holds.HoldReleased](t, o)
			take(data.HoldData, data.ReleasedAt, -1)
			ended[o.Subject]++
		case events.Type(holds.EventHoldExpired):
			data := decoded[holds.HoldExpired](t, o)
			take(data.HoldData, data.ExpiresAt, -1)
			ended[o.Subject]++
		case events.Type(holds.EventHoldConfirmed):
			data := decoded[holds.HoldConfirmed](t, o)
			if data.Late {
				take(data.HoldData, data.ConfirmedAt, 1) // it had expired before
			} else {
				ended[o.Subject]++
			}
			if cancelled[o.Subject] {
				take(data.HoldData, data.ConfirmedAt, -1)
			}
		}
	}
	for hold, times := range ended {
		if times != 1 {
			t.Errorf("hold %s ended %d times", hold, times)
		}
	}
	// At the same millisecond, slots are freed before others are taken.
	slices.SortStableFunc(changes, func(a, b change) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.by - b.by
	})
	now, most := make(map[string]int), make(map[string]int)
	for _, c := range changes {
		now[c.slot] += c.by
		most[c.slot] = max(most[c.slot], now[c.slot])
	}
	return most
}

// TestPaymentAtTheDeadline_InWaves_ReservedOrRefunded pays a thousand holds within 50 ms of their
// deadlines, in waves. Each payment must end in a reservation, or in a refund and an expired hold.
// How long a payment takes to arrive depends on the machine. After a wave in which all payments
// were late, or all in time, the next wave is published earlier, or later, until some waves meet
// the deadline.
func TestPaymentAtTheDeadline_InWaves_ReservedOrRefunded(t *testing.T) {
	t.Parallel()
	const waves, each, wavesMax = 10, 100, 40
	s := newHarness(t)
	for range 2 {
		s.startWorker()
	}
	confirmed, number := 0, 0
	lead, ttl := time.Duration(0), int64(1)
	for wave := 0; wave < waves || wave < wavesMax && (confirmed == 0 || confirmed == number); wave++ {
		inTime := s.payAtDeadline(t, fmt.Sprintf("room-%d", wave), each, ttl, lead)
		switch inTime {
		case 0:
			if lead += 40 * time.Millisecond; lead > 400*time.Millisecond { // the holds expire before all are granted
				lead, ttl = 0, ttl+1
			}
		case each:
			lead -= 40 * time.Millisecond
		}
		confirmed, number = confirmed+inTime, number+each
	}
	s.awaitExpired(number - confirmed)
	s.wantNoFindings()
	s.mu.Lock()
	defer s.mu.Unlock()
	ends := make(map[string][]string)
	for _, o := range s.outcomes {
		if o.Type == events.Type(holds.EventHoldExpired) || o.Type == events.Type(holds.EventHoldConfirmed) {
			ends[o.Subject] = append(ends[o.Subject], o.Type)
		}
	}
	for hold, its := range ends {
		if len(its) != 1 {
			t.Errorf("hold %s ended as %v", hold, its)
		}
	}
	if len(ends) != number {
		t.Errorf("%d of %d holds ended", len(ends), number)
	}
	if confirmed == 0 || confirmed == number {
		t.Errorf("%d of %d payments were in time; no wave met the deadline", confirmed, number)
	}
	t.Logf("%d in time, %d too late", confirmed, number-confirmed)
}

// payAtDeadline fills a new resource with holds, publishes each payment lead before the deadline,
// give or take 50 ms, and returns how many payments were in time.
func (s *harness) payAtDeadline(t *testing.T, room string, number, ttl int64, lead time.Duration) (inTime int) {
	t.Helper()
	s.setInventory(room, holds.SlotSelection{}, number)
	var all sync.WaitGroup
	paid := make([]string, number)
	for i := range number {
		all.Go(func() {
			o := s.answer(s.book(room, fmt.Sprintf("u%d", i), fmt.Sprintf("k%d", i), holds.SlotSelection{}, ttl))
			deadline := decoded[holds.HoldCreated](t, o).ExpiresAt.Add(rand.N(100*time.Millisecond) - 50*time.Millisecond - lead)
			<-time.After(time.Until(deadline))
			paid[i] = s.pay(o.Subject, fmt.Sprintf("p%d", i))
		})
	}
	all.Wait()
	for _, payment := range paid {
		switch o := s.answer(payment); o.Type {
		case events.Type(holds.EventHoldConfirmed):
			inTime++
		case events.Type(holds.EventConfirmRejected):
			if data := decoded[holds.ConfirmRejected](t, o); data.Reason != holds.ReasonExpired || !data.RefundRequired {
				t.Errorf("rejected for %s, refund required: %v", data.Reason, data.RefundRequired)
			}
		default:
			t.Errorf("a payment was answered with %s", o.Type)
		}
	}
	stacktest.Eventually(t, "the counters to be restored", func() bool { return len(s.counts(room)) == 0 })
	return inTime
}

// killing is a verb whose worker is killed at each of its steps.
type killing struct {
	verb        string
	steps       []string
	paid        bool  // ana has paid before the kill
	ttl         int64 // of her hold; with 1 it has expired before the kill
	event       func(s *harness, hold string) (eventID string)
	want        string // outcome
	wantSlot    holds.SlotCounts
	wantExpired int // number of hold.expired
}

const hour = 3600

// killings has all verbs that write to more than one place.
var killings = []killing{
	{
		verb: "place", steps: []string{"requests.fetched", "place.locked", "place.read", "place.decided",
			"requests.published", "requests.acked"}, ttl: hour,
		event: func(s *harness, _ string) string {
			return s.book("hall", "ben", "k2", seat, hour)
		},
		want: holds.EventHoldCreated, wantSlot: holds.SlotCounts{Held: 2},
	},
	{
		verb: "confirm", steps: []string{"payments.fetched", "confirm.claimed", "confirm.committed", "confirm.settled",
			"payments.published", "payments.acked"}, ttl: hour,
		event: paying, want: holds.EventHoldConfirmed, wantSlot: holds.SlotCounts{Reserved: 1},
	},
	{
		verb: "confirm late", steps: []string{"confirm.claimed", "place.decided", "confirm.retaken", "confirm.committed",
			"confirm.settled"}, ttl: 1,
		event: paying, want: holds.EventHoldConfirmed, wantSlot: holds.SlotCounts{Reserved: 1}, wantExpired: 1,
	},
	{
		verb: "expire", steps: []string{"expire.restored", "expire.announced", "expire.forgotten"}, ttl: hour,
		event: func(s *harness, _ string) string {
			return s.book("hall", "ben", "k2", seat, 1)
		},
		want: holds.EventHoldCreated, wantSlot: holds.SlotCounts{Held: 1}, wantExpired: 1,
	},
	{
		verb: "extend", steps: []string{"changes.fetched", "extend.decided", "changes.published", "changes.acked"}, ttl: hour,
		event: func(s *harness, hold string) string {
			return s.publish(events.BookingExtended, "hall", events.BookingExtendedData{HoldID: hold, TTLSeconds: hour})
		},
		want: holds.EventHoldExtended, wantSlot: holds.SlotCounts{Held: 1},
	},
	{
		verb: "cancel reservation", steps: []string{"cancel.committed", "cancel.timed", "changes.published"}, ttl: hour,
		paid: true,
		event: func(s *harness, hold string) string {
			return s.publish(events.ReservationCancelled, "hall", events.ReservationCancelledData{HoldID: hold})
		},
		want: holds.EventReservationCancelled,
	},
}

func paying(s *harness, hold string) string { return s.pay(hold, "p") }

// TestWorker_KilledAtEachStep_NextFinishes kills a worker with SIGKILL at each step of each verb.
// The next worker must finish: one outcome, correct counters. The steps mostly wait for redelivery,
// so all run in parallel, whatever the number of processors.
func TestWorker_KilledAtEachStep_NextFinishes(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, k := range killings {
		for _, step := range stacktest.Sample(t, k.steps) {
			if step == "place.locked" && os.Getenv("HOLDFAST_LOCK_STRATEGY") == "none" {
				continue
			}
			all.Go(func() { t.Run(k.verb+"/"+step, func(t *testing.T) { k.killAt(t, step) }) })
		}
	}
}

// killAt kills a worker at a step.
func (k killing) killAt(t *testing.T, step string) {
	const accepting = "HOLDFAST_LATE_PAYMENT=accept_if_free"
	s := newHarness(t)
	setUp := s.startWorker(accepting)
	s.setInventory("hall", seat, 2)
	hold := s.answer(s.book("hall", "ana", "k1", seat, k.ttl)).Subject
	if k.ttl == 1 {
		s.awaitExpired(1)
	}
	if k.paid {
		s.answer(paying(s, hold))
	}
	setUp.stop(t)

	doomed := s.startWorker("HOLDFAST_FAILPOINT="+step, accepting)
	release := func() {}
	if step == "place.locked" {
		release = s.lockByOther("hall", seat.Slots[0])
	}
	event := k.event(s, hold)
	release()
	doomed.killed(t)
	s.startWorker(accepting)
	outcome := s.answer(event)
	s.awaitExpired(k.wantExpired)

	// The answer to a later event shows that no other outcome follows.
	k.wantSlot.Slot, k.wantSlot.Capacity = "A-12", 3
	if slots := s.setInventory("hall", seat, 3); slots[0] != k.wantSlot {
		t.Errorf("the seat is %+v, want %+v", slots[0], k.wantSlot)
	}
	s.mu.Lock()
	its := answers(s.outcomes, event)
	s.mu.Unlock()
	if len(its) != 1 || outcome.Type != events.Type(k.want) {
		t.Errorf("outcomes are %+v, want one %s", its, k.want)
	}
	if n := len(s.ofType(holds.EventHoldExpired)); n != k.wantExpired {
		t.Errorf("%d times hold.expired, want %d", n, k.wantExpired)
	}
	s.wantNoFindings()
}

// awaitExpired waits for so many hold.expired.
func (s *harness) awaitExpired(n int) {
	s.t.Helper()
	s.await("hold.expired", func(outcomes []events.Envelope, _ []nats.Header) bool {
		return len(ofType(outcomes, holds.EventHoldExpired)) >= n
	})
}

// TestExpiry_NoSweep_NextRequestGetsTheSeat runs workers without timer and notifications. The
// counter still includes an expired hold, and the next request gets the seat at once.
func TestExpiry_NoSweep_NextRequestGetsTheSeat(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.startWorker("HOLDFAST_NO_TIMER=true", "HOLDFAST_NO_NOTIFICATIONS=true")
	s.setInventory("hall", seat, 1)
	s.awaitDeadline(t, s.answer(s.book("hall", "ana", "k1", seat, 1)))
	if got := s.counts("hall")["A-12"]; got != "1" {
		t.Errorf("%q held after the deadline: the hold was swept", got)
	}
	s.wantAnswer(s.book("hall", "ben", "k2", seat, 600), holds.EventHoldCreated)
}

// TestStop_WhileBusy_EveryEventHasItsOutcome stops one of two busy workers: it exits with 0, and
// every event has its outcome.
func TestStop_WhileBusy_EveryEventHasItsOutcome(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	first := s.startWorker()
	s.setInventory("hall", holds.SlotSelection{}, 1_000_000)
	const number = 2000
	for i := range number {
		s.book("hall", fmt.Sprintf("u%d", i), fmt.Sprintf("k%d", i), holds.SlotSelection{}, 600)
		if i == number/2 {
			stacktest.Must(t, first.cmd.Process.Signal(syscall.SIGTERM))
		}
	}
	first.awaitExit(t)
	if first.err != nil {
		t.Errorf("the stopped worker exited with %v, want 0", first.err)
	}
	s.startWorker()
	s.await("an outcome for each",
		func(outcomes []events.Envelope, _ []nats.Header) bool { return len(outcomes) >= number+1 })
	if n := len(s.ofType(holds.EventHoldCreated)); n != number {
		t.Errorf("%d created, want %d", n, number)
	}
	if got := s.counts("hall")[holds.StockSlot]; got != fmt.Sprint(number) {
		t.Errorf("%s held, want %d", got, number)
	}
}

// TestChanges_WaitTogether_DecidedInTheirOrder publishes changes while no worker runs, so that the next one takes them
// together: each depends on the one before.
func TestChanges_WaitTogether_DecidedInTheirOrder(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	first := s.startWorker()
	s.setInventory("hall", seat, 2)
	var held []string
	for _, user := range []string{"ana", "ben"} {
		held = append(held, s.answer(s.book("hall", user, user, seat, 600)).Subject)
	}
	s.answer(s.pay(held[0], "p"))
	first.stop(t)
	setCapacity := events.InventorySetData{ResourceID: "hall", SlotSelection: seat}
	extension := events.BookingExtendedData{HoldID: held[1], TTLSeconds: 900}
	want := []string{"inventory.rejected", "reservation.cancelled", "inventory.updated", "hold.extended", "hold.released", "hold.extension_rejected"}
	var ids []string
	for i, data := range []any{
		setCapacity, events.ReservationCancelledData{HoldID: held[0]}, setCapacity,
		extension, events.BookingCancelledData{HoldID: held[1]}, extension,
	} {
		ids = append(ids, s.publish([]string{
			events.InventorySet, events.ReservationCancelled, events.InventorySet,
			events.BookingExtended, events.BookingCancelled, events.BookingExtended,
		}[i], "hall", data))
	}
	s.startWorker()
	for i, id := range ids {
		s.wantAnswer(id, want[i])
	}
}

// TestStop_DuringStart_ExitsWithZero stops a worker that waits for the answer of a server before it starts.
func TestStop_DuringStart_ExitsWithZero(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	stacktest.Must(t, err)
	defer func() { _ = silent.Close() }()
	worker := launch(t, true, append(s.runArgs(), "--redis-url", "redis://"+silent.Addr().String()))
	conn, err := silent.Accept()
	stacktest.Must(t, err)
	defer func() { _ = conn.Close() }()
	worker.stop(t)
}

// lockRow locks a row in Postgres, given by its table and a condition, until unlock is called.
func (s *harness) lockRow(t *testing.T, row string) (unlock func()) {
	t.Helper()
	conn := stacktest.ConnectPostgres(t, s.urls.postgres)
	for _, statement := range []string{"BEGIN", "SELECT FROM " + s.namespace + "." + row + " FOR UPDATE"} {
		stacktest.Exec(t, conn, statement)
	}
	return func() {
		if err := conn.Close(context.Background()); err != nil { // ends the transaction
			t.Error(err)
		}
	}
}

// TestStop_RowLocked_EndsInTime stops a worker whose payment waits for a locked row.
func TestStop_RowLocked_EndsInTime(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	first := s.startWorker()
	s.setInventory("hall", seat, 1)
	hold := s.answer(s.book("hall", "ana", "k1", seat, 600))
	unlock := s.lockRow(t, "inventory WHERE resource_id = 'hall'")
	payment := s.pay(hold.Subject, "p")
	stacktest.Eventually(t, "the claim", func() bool {
		_, body := first.get(t, "/v1/holds/"+hold.Subject)
		return strings.Contains(body, "confirming")
	})
	first.stop(t)
	unlock()
	s.startWorker()
	s.wantAnswer(payment, holds.EventHoldConfirmed)
}

// TestRepeatedRequest_EachKind_AnsweredAsPromised publishes repeated requests of each kind and
// compares the answers with the contract.
func TestRepeatedRequest_EachKind_AnsweredAsPromised(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	s.startWorker()
	s.setInventory("hall", seat, 5)
	send := func(m *nats.Msg, id string) string {
		m.Header.Del("Nats-Msg-Id") // else the stream drops the duplicate
		stacktest.Must(t, s.client.Publish(t.Context(), m))
		return id
	}
	request := func(data events.BookingRequestedData) (m *nats.Msg, id string) {
		m, e, err := client.NewEvent(s.subjects, events.BookingRequested, "hall", "/test", data)
		stacktest.Must(t, err)
		return m, e.ID
	}
	original := bookingData("hall", "ana", "k1", seat, 600)
	original.Metadata = []byte(`{"shop":"x"}`)
	first, firstID := request(original)
	created := s.answer(send(first, firstID))
	hold := decoded[holds.HoldCreated](t, created)

	// The same event has the same outcome, which the stream stores once.
	send(first, firstID)

	// Another event with the same key and content, written differently, has the same answer,
	// replayed.
	repeated := original
	repeated.Metadata = nil
	again := s.answer(send(request(repeated)))
	data := decoded[holds.HoldCreated](t, again)
	if again.ID == created.ID || !data.Replayed || data.HoldID != hold.HoldID || data.CreatedAt != hold.CreatedAt ||
		data.ExpiresAt != hold.ExpiresAt || string(data.Metadata) != `{"shop":"x"}` {
		t.Errorf("the same key and content: %s", again.Data)
	}

	for reason, change := range map[string]func(*events.BookingRequestedData){
		"another user": func(d *events.BookingRequestedData) { d.UserID = "ben" },
		"another seat": func(d *events.BookingRequestedData) {
			d.SlotSelection = holds.SlotSelection{Slots: []string{"A-12", "A-13"}}
		},
		"another quantity": func(d *events.BookingRequestedData) { d.Quantity = 2 },
		"another ttl":      func(d *events.BookingRequestedData) { d.TTLSeconds = nil },
	} {
		other := original
		change(&other)
		o := s.answer(send(request(other)))
		if data := decoded[holds.HoldRejected](t, o); o.Type != events.Type(holds.EventHoldRejected) ||
			data.Reason != holds.ReasonKeyReused {
			t.Errorf("the same key, %s: %s %s", reason, o.Type, o.Data)
		}
	}

	twice := original
	twice.RequestKey, twice.Quantity = "k2", 3
	o := s.answer(send(request(twice)))
	if data := decoded[holds.HoldRejected](t, o); data.Reason != holds.ReasonAlreadyHolding ||
		data.HoldID != hold.HoldID || o.Subject != hold.HoldID.String() {
		t.Errorf("the same user and seat: %s", o.Data)
	}

	s.setInventory("hall", seat, 6) // its answer follows all of theirs
	s.wantOneOutcome(firstID)
	if got := s.counts("hall")["A-12"]; got != "1" {
		t.Errorf("%s held, want 1", got)
	}
}
