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
	"github.com/rs/zerolog"

	"holdfast/internal/holds"
)

// DryRunner decides events without any effect: a *holds.Service that only reads. Its methods return
// the outcomes that the events would have now.
type DryRunner interface {
	Service
	// Now returns the time of Redis' clock. If an outcome has an earlier At than a time that was read
	// before the decision, it is a remembered one: the event would change nothing.
	Now(ctx context.Context) (holds.Time, error)
	// GetHold returns a hold while it is remembered.
	GetHold(ctx context.Context, id holds.HoldID) (view holds.HoldView, found bool, err error)
}

// DryRunResult is the outcome or dead letter that an event would have if it were published now.
type DryRunResult struct {
	Text   string `json:"verdict"` // a short description
	Event  string `json:"event"`   // the outcome, "" when there would be none
	Reason string `json:"reason"`  // of a refusal or of a dead letter, else ""
	Detail string `json:"detail"`
}

var ago = regexp.MustCompile(` [0-9]+ [a-z]+ ago$`)

// Label returns Text without the age at its end, so that results can be counted by it.
func (v DryRunResult) Label() string { return ago.ReplaceAllString(v.Text, "") }

// DryRun returns the result that a message would have if it were published now. It returns an error
// if that cannot be known.
func (ns Namespace) DryRun(
	ctx context.Context, dry DryRunner, m *nats.Msg, log zerolog.Logger,
) (DryRunResult, error) {
	d := decider{dry, ns, log}
	now, err := dry.Now(ctx)
	if err != nil {
		return DryRunResult{}, fmt.Errorf("dry run: %w", err)
	}
	event := &delivery{result: holds.Result{Err: errors.New("the event was not decided")}}
	if event.in, err = d.decode(m.Subject, m.Header, m.Data, now.Time); err != nil {
		event.result.Err = err
	} else {
		if r, is := event.in.Request.(*holds.InventoryRequest); is { // later than every event that was stored
			r.Position = holds.StreamPosition{At: now.Time, StreamCreatedAt: now.Time, Seq: math.MaxInt64}
		}
		d.dispatch(ctx, []*delivery{event}, func(*delivery) {})
	}
	if event.result.Err == nil {
		if _, err := ns.outcomeMessage(event.result.Outcome, "", ""); err != nil {
			event.result.Err = &encodeError{err}
		}
	}
	var expiredAt *holds.Time
	if id := event.result.Outcome.Hold; event.result.Err == nil && event.result.Outcome.Reason() == holds.ReasonExpired {
		view, found, err := dry.GetHold(ctx, id)
		if err != nil {
			return DryRunResult{}, fmt.Errorf("dry run: %w", err)
		}
		if found {
			expiredAt = &view.ExpiresAt
		}
	}
	return newDryRunResult(event.result, expiredAt, now)
}

// newDryRunResult describes the result of an event. expiredAt is when its hold expired, nil if it
// did not or if that is not known. now is Redis' time before the decision. It returns an error if that of
// r does not show what would become of the event, see dryRunFailure.
func newDryRunResult(r holds.Result, expiredAt *holds.Time, now holds.Time) (DryRunResult, error) {
	if r.Err != nil {
		return dryRunFailure(r.Err)
	}
	o := r.Outcome
	v := DryRunResult{Event: o.Event, Reason: o.Reason()}
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
		v.Text = "hold expired"
		if expiredAt != nil {
			v.Text += " " + Humanize(now.Sub(expiredAt.Time)) + " ago"
		}
	case holds.ReasonReleased:
		v.Text = "hold was released"
	case holds.ReasonConfirmed, holds.ReasonAlreadyConfirmed:
		v.Text = "hold is already paid"
	case holds.ReasonUnknownHold:
		v.Text = "unknown hold"
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

// dryRunFailure describes the result of an event that would have no outcome.
func dryRunFailure(err error) (DryRunResult, error) {
	var dead *UnprocessableError
	switch {
	case errors.As(err, &dead):
		still := map[string]string{
			ReasonTooLarge: "still too large", ReasonMalformed: "still malformed",
			ReasonUnknownType: "still of an unknown type", ReasonSubjectMismatch: "still on the wrong subject",
		}
		return DryRunResult{Text: still[dead.Reason], Reason: dead.Reason, Detail: OneLine(dead.Detail)}, nil
	case dispositionOf(err) == dispositionRetryCounted:
		return DryRunResult{Text: "still fails", Reason: ReasonPoison, Detail: OneLine(err.Error())}, nil
	case dispositionOf(err) == dispositionRetrySoon:
		const detail = "other work on the same slots or hold is in the way; try again"
		return DryRunResult{Text: "would have to wait", Detail: detail}, nil
	case dispositionOf(err) == dispositionDefer:
		const detail = "the data of its resource is corrupt: worker audit shows the details"
		return DryRunResult{Text: "would have to wait", Detail: detail}, nil
	default:
		return DryRunResult{}, err
	}
}

// describeGrant describes an outcome that is not a refusal.
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
			return "would confirm late", "the hold has expired, and its slots are free"
		}
		return "would confirm", ""
	case holds.ReservationCancelled:
		return "would cancel the reservation", ""
	case holds.InventoryUpdated:
		return "would set the capacity", "also of slots whose capacity was set since: publisher inventory show has it"
	case holds.BookingCancelled:
		return "would cancel", "no request has this key; a later one will be refused"
	default:
		return "outcome would be " + o.Event, ""
	}
}

// describeShortage lists what is left of the slots that are sold out, at most slotsMax of them.
func describeShortage(s holds.SoldOut) string {
	const slotsMax = 3
	var texts []string
	for i, slot := range s.Unavailable {
		if i == slotsMax {
			texts = append(texts, fmt.Sprintf("and %d more", len(s.Unavailable)-slotsMax))
			break
		}
		left := max(0, slot.Capacity-slot.Reserved-slot.Held)
		texts = append(texts, fmt.Sprintf("%s has %d left of %d", slot.Slot, left, slot.Capacity))
	}
	if s.RetryAt != nil {
		texts = append(texts, "retry at "+s.RetryAt.Format(holds.TimeFormat))
	}
	return strings.Join(texts, ", ")
}

// Humanize formats a duration in its largest unit: 41 s, 7 min, 3 h, 12 days.
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
