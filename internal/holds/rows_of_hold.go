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

// Database is a reading of which Postgres database a worker uses.
type Database struct {
	ID string `json:"id"` // of the server and of the database in it; copies of a data directory have the same

	// Position is how far the server was, in bytes of its write-ahead log. It never falls while the server
	// runs, and copies soon differ in it.
	Position int64 `json:"position"`
}

// IsBetween reports whether a reading is of the same database as two others, of which it is not the first or the last.
func (d Database) IsBetween(before, after Database) bool {
	return d.ID == before.ID && d.ID == after.ID && before.Position <= d.Position && d.Position <= after.Position
}
