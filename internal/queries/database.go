package queries

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/micro"
)

// Database is a reading of which database a worker uses.
type Database struct {
	ID string `json:"id"` // of the server and of the database in it; copies of a data directory have the same

	// Position is how far the server was. It never falls while the server runs, and copies soon differ in it.
	Position int64 `json:"position"`
}

// DatabaseReader reads the two members of a Database.
type DatabaseReader func(context.Context) (id string, position int64, err error)

// Read returns a reading.
func (read DatabaseReader) Read(ctx context.Context) (d Database, err error) {
	d.ID, d.Position, err = read(ctx)
	return d, err
}

// IsBetween reports whether a reading is of the same database as two others, of which it is not the first or the last.
func (d Database) IsBetween(before, after Database) bool {
	return d.ID == before.ID && d.ID == after.ID && before.Position <= d.Position && d.Position <= after.Position
}

// databaseWithin bounds the reading of the database. It is shorter than callers wait for the next worker, so that they see this one.
const databaseWithin = 200 * time.Millisecond

// statistics returns what the service adds to the statistics of an endpoint: to those of EndpointHold the Database, unless
// it cannot be read.
func (q *Service) statistics(e *micro.Endpoint) any {
	if q.Database == nil || e.Name != EndpointHold {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), databaseWithin)
	defer cancel()
	database, err := q.Database.Read(ctx)
	if err != nil {
		q.log.Debug().Err(err).Msg("database not announced")
		return nil
	}
	return database
}
