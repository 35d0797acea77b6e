package events

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/holds"
)

// DryRunner says what would become of events without doing anything: a *holds.Service that only
// reads. What its methods emit is what would be the outcome now.
type DryRunner interface {
	Service
	// Now is the time by the clock that decides, Redis'. An outcome whose At lies before a time
	// that was read first was remembered: the event would change nothing.
	Now(ctx context.Context) (holds.Time, error)
	// GetHold shows a hold while it is remembered.
	GetHold(ctx context.Context, id holds.HoldID) (view holds.HoldView, found bool, err error)
}

// DryRunResult is what would become of an event if it were published now.
type DryRunResult struct {
	Text   string `json:"verdict"` // in words
	Event  string `json:"event"`   // the outcome, "" when there would be none
	Reason string `json:"reason"`  // of a refusal or of a dead letter, else ""
	Detail string `json:"detail"`
}

var ago = regexp.MustCompile(` [0-9]+ [a-z]+ ago$`)

// Label is the verdict without how long ago it has come to be so: what verdicts are counted by.
func (v DryRunResult) Label() string { return ago.ReplaceAllString(v.Text, "") }

// dryRun says what would become of a message, if it were published now on a subject.
func (d *decider) dryRun(ctx context.Context, dry DryRunner, subject string, header nats.Header, body []byte) (DryRunResult, error) {
	now, err := dry.Now(ctx)
	if err != nil {
		return DryRunResult{}, fmt.Errorf("evaluate: %w", err)
	}
	event := &delivery{result: holds.Result{Err: errors.New("the event was not decided")}}
	if event.in, err = d.decode(subject, header, body, now.Time); err != nil {
		event.result.Err = err
	} else {
		if event.in.Inventory != nil { // later than every event that was stored
			event.in.Inventory.Position = holds.StreamPosition{At: now.Time, StreamCreatedAt: now.Time, Seq: math.MaxInt64}
		}
		d.dispatch(ctx, []*delivery{event}, func(*delivery) {})
	}
	if event.result.Err == nil {
		if _, err := d.ns.outcomeMessage(event.result.Outcome, "", ""); err != nil {
			event.result.Err = &encodeError{err}
		}
	}
	var expiredAt *holds.Time
	if id := event.result.Outcome.Hold; event.result.Err == nil && reasonOf(event.result.Outcome) == holds.ReasonExpired {
		view, found, err := dry.GetHold(ctx, id)
		if err != nil {
			return DryRunResult{}, fmt.Errorf("evaluate: %w", err)
		}
		if found {
			expiredAt = &view.ExpiresAt
		}
	}
	return newDryRunResult(event.result, expiredAt, now)
}

// newDryRunResult says in words what would become of an event. lapsed is when its hold lapsed, nil
// when it has not or that is not known; now is when the question was asked, by Redis' clock. It
// returns an error when nothing can be said: nobody's fault is no verdict.
func newDryRunResult(r holds.Result, expiredAt *holds.Time, now holds.Time) (DryRunResult, error) {
	if r.Err != nil {
		return dryRunFailure(r.Err)
	}
	o := r.Outcome
	v := DryRunResult{Event: o.Event, Reason: reasonOf(o)}
	if !o.At.IsZero() && o.At.Before(now.Time) && v.Reason != holds.ReasonCancelled {
		v.Text, v.Detail = "already answered", Humanize(now.Sub(o.At.Time))+" ago"
		if o.Hold != (holds.HoldID{}) {
			v.Detail += ", about hold " + o.Hold.String()
		}
		return v, nil
	}
	switch v.Reason {
	case "":
		v.Text, v.Detail = describeGrant(o)
	case holds.ReasonSoldOut:
		v.Text = "sold out"
	case holds.ReasonExpired:
		v.Text = "hold lapsed"
		if expiredAt != nil {
			v.Text += " " + Humanize(now.Sub(expiredAt.Time)) + " ago"
		}
	case holds.ReasonReleased:
		v.Text = "hold was given back"
	case holds.ReasonConfirmed, holds.ReasonAlreadyConfirmed:
		v.Text = "hold is paid already"
	case holds.ReasonUnknownHold:
		v.Text = "hold is not remembered"
	default:
		v.Text = "would be refused: " + v.Reason
	}
	switch data := o.Data.(type) {
	case holds.HoldRejected:
		v.Detail = data.Message
		if data.SoldOut != nil {
			v.Detail = describeShortage(*data.SoldOut)
		}
	case holds.ConfirmRejected:
		v.Detail = "the payment would have to be refunded"
	case holds.InventoryRejected:
		v.Detail = data.Field
	}
	return v, nil
}

// dryRunFailure is the verdict on an event that would have no outcome.
func dryRunFailure(err error) (DryRunResult, error) {
	var dead *UnprocessableError
	switch {
	case errors.As(err, &dead):
		still := map[string]string{
			ReasonTooLarge: "still too large", ReasonMalformed: "still malformed",
			ReasonUnknownType: "still of an unknown type", ReasonSubjectMismatch: "still on the wrong subject",
		}
		return DryRunResult{Text: still[dead.Reason], Reason: dead.Reason, Detail: oneLine(dead.Detail)}, nil
	case dispositionOf(err) == dispositionRetryCounted:
		return DryRunResult{Text: "still fails", Reason: ReasonPoison, Detail: oneLine(err.Error())}, nil
	case dispositionOf(err) == dispositionRetrySoon:
		return DryRunResult{Text: "would have to wait", Detail: "other work on the same slots or hold is in the way; ask again"}, nil
	case dispositionOf(err) == dispositionDefer:
		return DryRunResult{Text: "would have to wait", Detail: "what there is of its resource is damaged: worker audit tells what"}, nil
	default:
		return DryRunResult{}, err
	}
}

// describeGrant says what an outcome that refuses nothing does.
func describeGrant(o holds.Outcome) (text, detail string) {
	switch data := o.Data.(type) {
	case holds.HoldCreated:
		return "would hold", "until " + data.ExpiresAt.Format(holds.TimeFormat)
	case holds.HoldExtended:
		return "would extend", "until " + data.ExpiresAt.Format(holds.TimeFormat)
	case holds.HoldReleased:
		return "would release", ""
	case holds.HoldConfirmed:
		if data.Late {
			return "would confirm late", "the hold has lapsed, and its slots are free"
		}
		return "would confirm", ""
	case holds.ReservationCancelled:
		return "would cancel the reservation", ""
	case holds.InventoryUpdated:
		return "would set the capacity", ""
	case holds.BookingCancelled:
		return "would cancel", "no request with this key was seen; one that comes will be refused"
	default:
		return "would end as " + o.Event, ""
	}
}

// describeShortage says what there is of the slots that are sold out.
func describeShortage(s holds.SoldOut) string {
	const slotsMax = 3
	var texts []string
	for i, slot := range s.Unavailable {
		if i == slotsMax {
			texts = append(texts, fmt.Sprintf("and %d more", len(s.Unavailable)-slotsMax))
			break
		}
		texts = append(texts, fmt.Sprintf("%s has %d left of %d", slot.Slot, max(0, slot.Capacity-slot.Reserved-slot.Held), slot.Capacity))
	}
	if s.RetryAt != nil {
		texts = append(texts, "worth another try at "+s.RetryAt.Format(holds.TimeFormat))
	}
	return strings.Join(texts, ", ")
}

// reasonOf is why an outcome refuses, "" when it does not.
func reasonOf(o holds.Outcome) string {
	switch data := o.Data.(type) {
	case holds.HoldRejected:
		return data.Reason
	case holds.ExtensionRejected:
		return data.Reason
	case holds.ReleaseRejected:
		return data.Reason
	case holds.ConfirmRejected:
		return data.Reason
	case holds.CancelRejected:
		return data.Reason
	case holds.InventoryRejected:
		return data.Reason
	default:
		return ""
	}
}

// Humanize tells a duration to a person, in its largest unit: 41 s, 7 min, 3 h, 12 days.
func Humanize(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, d)/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	default:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
}
