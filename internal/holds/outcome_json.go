package holds

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendJSON appends the JSON of an outcome's data, byte for byte what json.Marshal returns, in a
// fifth of the time. It returns an error for a text that is not UTF-8, and for metadata that is not
// one JSON value.
func AppendJSON(b []byte, data OutcomeData) ([]byte, error) {
	o := object{b: append(b, '{')}
	data.members(&o)
	return append(o.b, '}'), o.err
}

// object is a JSON object that is being written.
type object struct {
	b   []byte
	err error // the first one
}

// name begins a member. No member has a name that must be escaped.
func (o *object) name(name string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) text(name, text string) {
	o.name(name)
	o.quote(text)
}

// optional writes a text unless it is empty.
func (o *object) optional(name, text string) {
	if text != "" {
		o.text(name, text)
	}
}

func (o *object) quote(text string) {
	var err error
	if o.b, err = AppendQuote(o.b, text); err != nil && o.err == nil {
		o.err = err
	}
}

func (o *object) integer(name string, n int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, n, 10)
}

func (o *object) time(name string, t Time) {
	o.name(name)
	o.b = t.AppendJSON(o.b)
}

// flag writes true, or nothing for false.
func (o *object) flag(name string, is bool) {
	if is {
		o.name(name)
		o.b = append(o.b, "true"...)
	}
}

func (o *object) value(name string, value jsontext.Value) {
	o.name(name)
	var err error
	if o.b, err = jsontext.AppendFormat(o.b, value); err != nil && o.err == nil {
		o.err = err
	}
}

func (o *object) counts(name string, slots []SlotCounts) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, slot := range slots {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = append(o.b, '{')
		o.text("slot", slot.Slot)
		o.integer("capacity", slot.Capacity)
		o.integer("reserved", slot.Reserved)
		o.integer("held", slot.Held)
		o.b = append(o.b, '}')
	}
	o.b = append(o.b, ']')
}

// AppendQuote appends the JSON string of a text. It returns an error for a text that is not UTF-8.
func AppendQuote(b []byte, text string) ([]byte, error) {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return jsontext.AppendQuote(b, text)
		}
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"'), nil
}

// AppendJSON appends TimeFormat in quotes.
func (t Time) AppendJSON(b []byte) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), TimeFormat), '"')
}

func (a SlotSelection) members(o *object) {
	o.optional("check_in", a.CheckIn)
	o.optional("check_out", a.CheckOut)
	if a.Slots == nil {
		return
	}
	o.name("slots")
	o.b = append(o.b, '[')
	for i, slot := range a.Slots {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.quote(slot)
	}
	o.b = append(o.b, ']')
}

func (d HoldData) members(o *object) {
	o.text("resource_id", d.ResourceID)
	if d.HoldID != (HoldID{}) {
		o.text("hold_id", d.HoldID.String())
	}
	o.optional("request_key", d.RequestKey)
	o.optional("user_id", d.UserID)
	d.SlotSelection.members(o)
	if d.Quantity != nil {
		o.integer("quantity", *d.Quantity)
	}
	if d.Metadata != nil {
		o.value("metadata", d.Metadata)
	}
}

func (d HoldCreated) members(o *object) {
	d.HoldData.members(o)
	o.time("created_at", d.CreatedAt)
	o.time("expires_at", d.ExpiresAt)
	o.flag("replayed", d.Replayed)
}

func (d HoldRejected) members(o *object) {
	d.HoldData.members(o)
	o.text("reason", d.Reason)
	o.text("message", d.Message)
	o.optional("field", d.Field)
	if d.SoldOut != nil {
		o.counts("unavailable", d.Unavailable)
		if d.RetryAt != nil {
			o.time("retry_at", *d.RetryAt)
		} else {
			o.name("retry_at")
			o.b = append(o.b, "null"...)
		}
	}
	o.flag("replayed", d.Replayed)
}

func (d HoldExtended) members(o *object) {
	d.HoldData.members(o)
	o.time("extended_at", d.ExtendedAt)
	o.time("expires_at", d.ExpiresAt)
}

func (d ExtensionRejected) members(o *object) {
	d.HoldData.members(o)
	o.text("reason", d.Reason)
	o.optional("field", d.Field)
}

func (d HoldReleased) members(o *object) {
	d.HoldData.members(o)
	o.time("released_at", d.ReleasedAt)
}

func (d HoldExpired) members(o *object) {
	d.HoldData.members(o)
	o.time("expires_at", d.ExpiresAt)
	o.time("restored_at", d.RestoredAt)
}

func (d HoldConfirmed) members(o *object) {
	d.HoldData.members(o)
	o.text("payment_id", d.PaymentID)
	o.time("confirmed_at", d.ConfirmedAt)
	o.flag("late", d.Late)
}

func (d ConfirmRejected) members(o *object) {
	d.HoldData.members(o)
	o.text("payment_id", d.PaymentID)
	o.text("reason", d.Reason)
	o.name("refund_required")
	o.b = strconv.AppendBool(o.b, d.RefundRequired)
}

func (d ReleaseRejected) members(o *object) {
	d.HoldData.members(o)
	o.text("reason", d.Reason)
}

func (d ReservationCancelled) members(o *object) {
	d.HoldData.members(o)
	o.time("cancelled_at", d.CancelledAt)
}

func (d CancelRejected) members(o *object) {
	d.HoldData.members(o)
	o.text("reason", d.Reason)
}

func (d BookingCancelled) members(o *object) {
	o.text("resource_id", d.ResourceID)
	o.text("request_key", d.RequestKey)
}

func (d InventoryUpdated) members(o *object) {
	o.text("resource_id", d.ResourceID)
	o.counts("slots", d.Slots)
}

func (d InventoryRejected) members(o *object) {
	o.text("resource_id", d.ResourceID)
	o.text("reason", d.Reason)
	o.optional("field", d.Field)
}
