package holds

// CancelRequest gives back what a reservation took.
type CancelRequest struct {
	Cause  string // names the event: the same at every delivery of it
	Hold   HoldID // that the reservation was made of
	Reason string // "" = not told
}
