package holds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// QuantityMax is the maximum quantity of one request.
const QuantityMax = 1_000_000

// PlaceRequest requests a hold. The decoder has checked its form; Place validates its content.
type PlaceRequest struct {
	EventID    string    // the same at every delivery of the event
	StoredAt   time.Time // when JetStream stored the event
	Resource   string
	RequestKey string
	User       string
	Selection  SlotSelection
	Quantity   int64
	TTLSeconds *int64         // nil for the TTL of the policy
	Metadata   jsontext.Value // compact JSON; nil when the request has none
}

// placingKind is the kind of a placing. place.lua gets it as an argument.
type placingKind string

const (
	kindRequest placingKind = "request" // a request for a hold
	kindLate    placingKind = "late"    // a late payment that takes the slots of its hold again
)

// placing is a request or a late payment that is being decided. For a late payment, EventID is the
// payment, and place.lua ignores the fingerprint and the tail.
type placing struct {
	*PlaceRequest
	kind          placingKind
	index         int      // among the requests of the call
	late          string   // UUID of the hold that was paid late; "" for a request
	names         []string // sorted
	slots         string   // names, joined
	ttl           time.Duration
	fingerprint   string
	selectionJSON string
}

// answerFunc receives the answer of place.lua to a request and the tail of the hold's record, or
// the error for which there is no answer.
type answerFunc func(p *placing, answer, tail string, err error)

// Place decides requests. It yields the index and the result of each request once, as soon as the
// result is known, in no particular order. The work starts when the caller reads the sequence, and
// goes on to its end when the caller stops reading.
//
// Place decides the requests for one resource in the given order, with one lock, one read of
// Postgres and one call of place.lua for all of them. The resources of one call share the round
// trips. A group whose lock another owner holds waits for it up to the policy's LockWait, while the
// others continue. After that its results are ErrBusy.
func (s *Service) Place(ctx context.Context, requests []PlaceRequest) iter.Seq2[int, Result] {
	return func(yield func(int, Result) bool) {
		reading := true
		answer := func(i int, r Result) { reading = reading && yield(i, r) }
		w := s.beginWork()
		waiting := make([]*placing, 0, len(requests))
		for i := range requests {
			if err := w.pausedErr(requests[i].Resource); err != nil {
				answer(i, Result{Err: fmt.Errorf("place hold on %s: %w", requests[i].Resource, err)})
				continue
			}
			p, err := w.validate(&requests[i], i)
			if err != nil {
				answer(i, rejectInvalid(&requests[i], err))
				continue
			}
			waiting = append(waiting, p)
		}
		w.place(ctx, waiting, func(p *placing, reply, tail string, err error) {
			var outcome Outcome
			if err == nil {
				outcome, err = p.outcome(reply, tail)
				w.reportUnread(p.Resource, nil, err)
			}
			answer(p.index, Result{outcome, err})
		})
	}
}

// validate checks the content of a request. It returns an *InvalidError when it is not valid.
func (w *work) validate(r *PlaceRequest, index int) (*placing, error) {
	policy := w.policyAt(r.StoredAt)
	today := r.StoredAt.UTC().Truncate(24 * time.Hour)
	names, err := r.Selection.names(nightsWindow{
		max:      policy.NightsMax,
		earliest: today.AddDate(0, 0, -1), // one day of grace accepts today's date of every time zone
		latest:   today.AddDate(0, 0, policy.HorizonDays),
	})
	if err != nil {
		return nil, err
	}
	if r.Quantity < 1 || r.Quantity > QuantityMax {
		return nil, invalid("quantity", "must be 1 to %d", QuantityMax)
	}
	ttl, written := policy.HoldTTL, "-"
	if r.TTLSeconds != nil {
		if ttl, err = policy.ttl(*r.TTLSeconds); err != nil {
			return nil, err
		}
		written = strconv.FormatInt(*r.TTLSeconds, 10)
	}
	selection, err := r.Selection.Compact()
	if err != nil {
		return nil, err
	}
	slots := joinSlots(names)
	content := strings.Join([]string{r.User, slots, strconv.FormatInt(r.Quantity, 10), written}, " ")
	sum := sha256.Sum256([]byte(content))
	return &placing{
		PlaceRequest: r, kind: kindRequest, index: index, names: names, slots: slots, ttl: ttl, selectionJSON: selection,
		fingerprint: hex.EncodeToString(sum[:16]),
	}, nil
}

// place decides requests and calls done once for each. Most are decided in one step; what that
// leaves is decided in two, under locks.
func (w *work) place(ctx context.Context, requests []*placing, done answerFunc) {
	if undecided := w.placeInOneStep(ctx, requests, done); len(undecided) > 0 {
		w.placeLocked(ctx, undecided, done)
	}
}

func fail(requests []*placing, err error, done answerFunc) {
	for _, p := range requests {
		done(p, "", "", fmt.Errorf("place hold on %s: %w", p.Resource, err))
	}
}
