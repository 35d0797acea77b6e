package holds

import (
	"context"
	"fmt"
	"strconv"
)

// Term supplies the epoch under which a worker decides. One Term serves all parts of the worker; package
// recovery ends it when Redis has lost data.
type Term interface {
	// Current returns the epoch to decide under now. It returns a *RebuildingError while there is none.
	Current() (CurrentEpoch, error)
	// WaitReady returns nil when there is an epoch to decide under, and the cause of ctx when ctx ends first.
	WaitReady(ctx context.Context) error
	// Verify returns nil if what was decided under an epoch, or under a TermID, may be published now. It
	// returns ErrDataLost when another epoch is current, and ErrBusy when another policy was stored.
	Verify(ctx context.Context, term string) error
	// Report reports what a script has found under an epoch: err is an ErrDataLost or an ErrCorrupt. Resource is
	// "" when the error concerns a partition.
	Report(epoch, resource string, err error)
}

// CurrentEpoch is what a worker decides under.
type CurrentEpoch struct {
	Name     string   // of the epoch
	History  string   // of the server that has the epoch, "" when unknown; scripts refuse on a server with another one
	TermID   string   // names the epoch and the version of the stored policies, see Term.Verify
	Policies Policies // as stored in Postgres; nil when they were not read: then each worker uses its own policy
	Clock    int64    // ms that the scripts use in place of Redis' clock; 0 except in tests
}

// ScriptArg returns the first argument of every script: epoch[@history[@clock]], see lua/prelude.lua.
func (e CurrentEpoch) ScriptArg() string {
	switch {
	case e.Clock != 0:
		return e.Name + "@" + e.History + "@" + strconv.FormatInt(e.Clock, 10)
	case e.History != "":
		return e.Name + "@" + e.History
	}
	return e.Name
}

// RebuildingError is an ErrDataLost that says how far the rebuild is.
type RebuildingError struct{ Progress string }

func (e *RebuildingError) Error() string { return fmt.Sprintf("%v: %s", ErrDataLost, e.Progress) }

// Is reports that a RebuildingError is an ErrDataLost.
func (*RebuildingError) Is(target error) bool { return target == ErrDataLost }
