package holds

// ReservationRow is the row in Postgres of the reservation that a hold became.
type ReservationRow struct {
	Status       string // confirmed or cancelled
	PaymentID    string
	Quantity     int64
	Slots        []string // sorted
	UserID       string
	ConfirmedAt  Time
	CancelledAt  Time // zero unless it is cancelled
	CancelReason string
}

// PaymentRow is the permanent answer to a payment in Postgres.
type PaymentRow struct {
	PaymentID string
	Outcome   string // confirmed or rejected
	Reason    string // of a rejection
	DecidedAt Time
	Late      bool // the hold had expired, and its slots were taken again
}

// ResourceRow is the inventory of one resource: the number of its slots, and sums over them.
type ResourceRow struct {
	ResourceID string `json:"resource_id"`
	Slots      int64  `json:"slots"`
	Capacity   int64  `json:"capacity"`
	Reserved   int64  `json:"reserved"`
}
