package holds

// ExtendRequest asks for a later deadline: so many seconds from now, or, when a payment was
// started, the payment window.
type ExtendRequest struct {
	Cause          string // names the event: the same at every delivery of it
	Hold           HoldID
	TTLSeconds     int64
	PaymentStarted bool // once a hold; TTLSeconds is not looked at
}
