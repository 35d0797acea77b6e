package queries

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/events"
	"holdfast/internal/holds"
	"holdfast/internal/members"
)

// The bounds of the pages of lists.
const (
	pageDefault = 50
	PageMax     = 500 // entries

	// The holds that are being paid for, on one resource.
	confirmingReadMax = 5000 // payments whose holds are read
	confirmingBatch   = 200  // holds that are read in one round trip
)

// Querier reads Redis: *holds.Service.
type Querier interface {
	Availability(ctx context.Context, resource string, selection holds.SlotSelection) ([]holds.SlotAvailability, error)
	GetHold(ctx context.Context, id holds.HoldID) (view holds.HoldView, found bool, err error)
	ListHolds(ctx context.Context, resource string, after holds.Place, user string, limit int) (
		page []holds.HoldView, next *holds.Place, err error)
	GetHolds(ctx context.Context, ids []holds.HoldID) ([]holds.HoldView, error)
	CountHolds(ctx context.Context, resources []string) ([]int64, error)
	CountLive(ctx context.Context, top int) (holds.LiveCounts, error)
}

// Ledger reads Postgres for operators: *store.Store.
type Ledger interface {
	HoldRows(ctx context.Context, id holds.HoldID, paymentsMax int) (*holds.ReservationRow, []holds.PaymentRow, error)
	Resources(ctx context.Context, prefix, after string, limit int) (page []holds.ResourceRow, next string, err error)
	Slots(ctx context.Context, resource, after string, limit int) ([]string, error)
}

// Inquiry answers the questions of services and operators: which slots are available, which holds are live, what happened
// to a hold, which resources exist, how much waits. HTTP and NATS share it. It changes nothing, and each answer reads
// a bounded amount. Its methods may be called concurrently.
type Inquiry struct {
	js      jetstream.JetStream
	ns      events.Namespace
	querier Querier
	ledger  Ledger

	recentWithin time.Duration // the constant, except in tests

	mu      sync.Mutex
	samples []rateSample // of earlier calls of Stats, oldest first
	live    liveSample
}

// NewInquiry returns the Inquiry of a namespace.
func NewInquiry(js jetstream.JetStream, ns events.Namespace, q Querier, l Ledger) *Inquiry {
	return &Inquiry{js: js, ns: ns, querier: q, ledger: l, recentWithin: recentWithin}
}

// Availability is the answer to a query for available slots, by HTTP.
type Availability struct {
	ResourceID string                   `json:"resource_id"`
	Slots      []holds.SlotAvailability `json:"slots"`
}

// KnownAvailability is the answer by NATS, which also says which slots are known.
type KnownAvailability struct {
	ResourceID string             `json:"resource_id"`
	Slots      []SlotAvailability `json:"slots"`
}

// SlotAvailability is the availability of a slot. Known says whether the slot has an inventory row, LostCommits that nothing
// is granted because Postgres has lost commits of the resource: the capacity is then not the one that was set.
type SlotAvailability struct {
	holds.SlotAvailability
	Known       bool `json:"known"`
	LostCommits bool `json:"lost_commits,omitzero"`
}

// known returns the answer by NATS.
func (a Availability) known() KnownAvailability {
	answer := KnownAvailability{a.ResourceID, make([]SlotAvailability, len(a.Slots))}
	for i, slot := range a.Slots {
		answer.Slots[i] = SlotAvailability{slot, slot.Known, slot.LostCommits}
	}
	return answer
}

// Availability returns the availability of slots.
func (i *Inquiry) Availability(ctx context.Context, resource string, selection holds.SlotSelection) (Availability, error) {
	slots, err := i.querier.Availability(ctx, resource, selection)
	return Availability{resource, slots}, err
}

// ErrUnknownHold is returned for a hold that is not remembered.
var ErrUnknownHold = errors.New("no hold with this id is remembered")

// Hold returns a hold. It returns holds.ErrHoldID if id is not a hold id, and ErrUnknownHold if
// the hold is not remembered.
func (i *Inquiry) Hold(ctx context.Context, id string) (holds.HoldView, error) {
	parsed, err := holds.ParseHoldID(id)
	if err != nil {
		return holds.HoldView{}, err
	}
	view, found, err := i.querier.GetHold(ctx, parsed)
	if err == nil && !found {
		err = ErrUnknownHold
	}
	return view, err
}

// HoldsPage is a page of live holds, in the order of their deadlines. A page may have fewer holds
// than were asked for, even none, and a next page.
type HoldsPage struct {
	ResourceID string           `json:"resource_id"`
	Holds      []holds.HoldView `json:"holds"`
	Next       string           `json:"next,omitzero"`    // the value of after for the next page; "" at the end
	Partial    string           `json:"partial,omitzero"` // what was not read; "" when everything was
}

// Holds returns a page of the live holds of a resource.
func (i *Inquiry) Holds(ctx context.Context, q HoldsQuery) (HoldsPage, error) {
	after, err := i.place(ctx, q.ResourceID, q.After)
	if err != nil {
		return HoldsPage{}, err
	}
	page := HoldsPage{ResourceID: q.ResourceID, Holds: []holds.HoldView{}}
	var next *holds.Place
	if q.State != holds.Confirming {
		found, more, err := i.querier.ListHolds(ctx, q.ResourceID, after, q.UserID, q.Limit)
		if err != nil {
			return HoldsPage{}, err
		}
		page.Holds, next = append(page.Holds, found...), more
	}
	if q.State != holds.Held {
		paid, complete, err := i.confirming(ctx, q.ResourceID)
		if err != nil {
			return HoldsPage{}, err
		}
		if !complete {
			page.Partial = fmt.Sprintf("more than %d payments of this resource wait, so holds that are being paid for may be missing",
				confirmingReadMax)
		}
		for _, hold := range paid {
			at := placeOf(hold)
			if comparePlaces(at, after) > 0 && (next == nil || comparePlaces(at, *next) <= 0) &&
				(q.UserID == "" || hold.UserID == q.UserID) {
				page.Holds = append(page.Holds, hold)
			}
		}
	}
	slices.SortFunc(page.Holds, func(a, b holds.HoldView) int { return comparePlaces(placeOf(a), placeOf(b)) })
	page.Holds = slices.CompactFunc(page.Holds, func(a, b holds.HoldView) bool { return a.HoldID == b.HoldID })
	if len(page.Holds) > q.Limit {
		page.Holds = page.Holds[:q.Limit]
		last := placeOf(page.Holds[q.Limit-1])
		next = &last
	}
	if next != nil {
		page.Next = holds.PlaceText(holds.HoldID{Resource: q.ResourceID, UUID: next.UUID}, next.DeadlineMS)
	}
	for n := range page.Holds {
		if !q.Reveal {
			page.Holds[n] = Hidden(page.Holds[n])
		}
	}
	return page, nil
}

// Hidden returns a hold without its user and metadata.
func Hidden(hold holds.HoldView) holds.HoldView {
	hold.UserID, hold.Metadata = "", nil
	return hold
}

func placeOf(hold holds.HoldView) holds.Place {
	return holds.Place{DeadlineMS: hold.ExpiresAt.UnixMilli(), UUID: hold.HoldID.UUID}
}

func comparePlaces(a, b holds.Place) int {
	return cmp.Or(cmp.Compare(a.DeadlineMS, b.DeadlineMS), strings.Compare(a.UUID, b.UUID))
}

// place returns the place that the parameter after names. For a hold id alone it is the deadline
// that the hold has now.
func (i *Inquiry) place(ctx context.Context, resource, after string) (holds.Place, error) {
	if after == "" {
		return holds.Place{}, nil
	}
	id, deadline, err := holds.ParsePlace(after)
	if err == nil && id.Resource != resource {
		err = errors.New("the hold is of another resource")
	}
	if err != nil {
		return holds.Place{}, members.Errorf("after: %v", err)
	}
	if deadline >= 0 {
		return holds.Place{DeadlineMS: deadline, UUID: id.UUID}, nil
	}
	hold, found, err := i.querier.GetHold(ctx, id)
	switch {
	case err != nil:
		return holds.Place{}, err
	case !found:
		return holds.Place{}, members.Errorf("after: this hold is no longer remembered, use next of the page before")
	}
	return placeOf(hold), nil
}

// confirming returns the holds of a resource that are being paid for. The payment of such a hold is
// not acknowledged, so they are found among the payments after the first one that is not. complete is false when
// these are too many to read.
func (i *Inquiry) confirming(ctx context.Context, resource string) (found []holds.HoldView, complete bool, err error) {
	consumer, err := i.js.Consumer(ctx, i.ns.InStream(), events.ConsumerPayments)
	if err != nil {
		return nil, false, fmt.Errorf("consumer %s: %w", events.ConsumerPayments, err)
	}
	info := consumer.CachedInfo()
	if info.NumAckPending == 0 {
		return nil, true, nil
	}
	stream, err := i.js.Stream(ctx, i.ns.InStream())
	if err != nil {
		return nil, false, fmt.Errorf("stream %s: %w", i.ns.InStream(), err)
	}
	config := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{i.ns.In(events.PaymentConfirmed, resource)},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: info.AckFloor.Stream + 1,
	}
	complete = true
	seen := make(map[holds.HoldID]bool)
	var paid []holds.HoldID
	for m, err := range events.ReadStream(ctx, i.js, stream, config, info.Delivered.Stream) {
		if err != nil {
			return nil, false, fmt.Errorf("read stream %s: %w", i.ns.InStream(), err)
		}
		in, err := i.ns.Decode(m.Subject, m.Header, m.Data, m.Meta.Timestamp)
		if err != nil {
			continue // it is dead-lettered
		}
		payment, is := in.Request.(*holds.ConfirmRequest)
		if !is || seen[payment.Hold] {
			continue
		}
		if len(seen) == confirmingReadMax {
			complete = false
			break
		}
		seen[payment.Hold] = true
		paid = append(paid, payment.Hold)
	}
	for batch := range slices.Chunk(paid, confirmingBatch) {
		known, err := i.querier.GetHolds(ctx, batch)
		if err != nil {
			return nil, false, err
		}
		for _, hold := range known {
			if hold.State == holds.Confirming {
				found = append(found, hold)
			}
		}
	}
	return found, complete, nil
}

// Resource is a resource: sums over its slots, and its number of live holds. Holds that are being
// paid for are not counted.
type Resource struct {
	holds.ResourceRow
	LiveHolds int64 `json:"live_holds"`
}

// ResourcesPage is a page of resources, in the order of their ids in Postgres. With a prefix it may have fewer resources than
// Limit, even none, and a Next.
type ResourcesPage struct {
	Resources []Resource `json:"resources"`
	Next      string     `json:"next,omitzero"` // the value of after for the next page; "" at the end
}

// Resources returns a page of the resources that have inventory.
func (i *Inquiry) Resources(ctx context.Context, q ResourcesQuery) (ResourcesPage, error) {
	rows, next, err := i.ledger.Resources(ctx, q.Prefix, q.After, q.Limit+1)
	if err != nil {
		return ResourcesPage{}, err
	}
	page := ResourcesPage{Resources: []Resource{}, Next: next}
	if len(rows) > q.Limit {
		rows = rows[:q.Limit]
		page.Next = rows[q.Limit-1].ResourceID
	}
	names := make([]string, len(rows))
	for n, row := range rows {
		names[n] = row.ResourceID
	}
	counts, err := i.querier.CountHolds(ctx, names)
	if err != nil {
		return ResourcesPage{}, err
	}
	for n, row := range rows {
		page.Resources = append(page.Resources, Resource{row, counts[n]})
	}
	return page, nil
}

// Slots returns the names of the slots of a resource that have inventory, in their order: those after
// another, at most limit.
func (i *Inquiry) Slots(ctx context.Context, resource, after string, limit int) ([]string, error) {
	return i.ledger.Slots(ctx, resource, after, limit)
}
