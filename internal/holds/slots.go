package holds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// The bounds of a list of slots in one event.
const (
	SlotsMax          = 50
	InventorySlotsMax = 1100
)

// StockSlot is the one slot of a resource that has neither nights nor named slots.
const StockSlot = "stock"

// DateFormat is the format of a night. A night has the date of its evening.
const DateFormat = "2006-01-02"

// SlotSelection selects slots, as the publisher wrote them: by nights, by names, or by neither,
// which selects the slot "stock". Every outcome repeats it unchanged.
type SlotSelection struct {
	CheckIn  string   `json:"check_in,omitzero"`
	CheckOut string   `json:"check_out,omitzero"`
	Slots    []string `json:"slots,omitzero"`
}

// Compact returns the JSON of a, which has no space in it.
func (a SlotSelection) Compact() (string, error) {
	text, err := json.Marshal(a)
	return string(text), err
}

// InvalidError says that a request is well-formed but its content is not valid. It becomes the
// reason invalid_request with the name of the wrong member.
type InvalidError struct {
	Field   string
	Message string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Message }

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Message: fmt.Sprintf(format, args...)}
}

type nightsWindow struct {
	max      int       // maximum number of nights
	earliest time.Time // first night that has not passed; zero sets no bound
	latest   time.Time // last night within the horizon; zero sets no bound
}

// names returns the sorted names of the selected slots. It returns an *InvalidError when the nights
// are out of order, too many, in the past or beyond the horizon. The decoder has already checked
// the form (patterns, calendar dates, repetition, not both nights and names).
func (a SlotSelection) names(w nightsWindow) ([]string, error) {
	switch {
	case a.CheckIn != "":
		return nights(a.CheckIn, a.CheckOut, w)
	case a.Slots != nil:
		return slices.Sorted(slices.Values(a.Slots)), nil
	default:
		return []string{StockSlot}, nil
	}
}

func nights(checkIn, checkOut string, w nightsWindow) ([]string, error) {
	in, err := time.Parse(DateFormat, checkIn)
	if err != nil {
		return nil, invalid("check_in", "is not a date")
	}
	out, err := time.Parse(DateFormat, checkOut)
	if err != nil {
		return nil, invalid("check_out", "is not a date")
	}
	if !out.After(in) {
		return nil, invalid("check_out", "must be after check_in")
	}
	count := int((out.Unix() - in.Unix()) / (24 * 60 * 60)) // a Duration ends at 292 years
	if count > w.max {
		return nil, invalid("check_out", "%d nights are more than the %d allowed", count, w.max)
	}
	if !w.earliest.IsZero() && in.Before(w.earliest) {
		return nil, invalid("check_in", "has passed")
	}
	if last := out.AddDate(0, 0, -1); !w.latest.IsZero() && last.After(w.latest) {
		return nil, invalid("check_out", "lies beyond the horizon: the last night can be %s", w.latest.Format(DateFormat))
	}
	names := make([]string, count)
	for i := range names {
		names[i] = in.AddDate(0, 0, i).Format(DateFormat)
	}
	return names, nil
}

// ReservedSlots returns the sorted names of the slots of a hold that was granted. It returns an error
// for nights that no hold can have.
func (a SlotSelection) ReservedSlots() ([]string, error) {
	return a.names(nightsWindow{max: InventorySlotsMax})
}

// joinSlots returns a sorted set of slots as text for a record and its fingerprint.
func joinSlots(names []string) string { return strings.Join(names, ",") }
