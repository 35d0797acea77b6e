package holds

import (
	"context"
	"fmt"
	"strconv"

	"holdfast/internal/record"
)

// Term supplies the epochs under which a worker decides, one for each partition. One Term serves
// all parts of the worker; package recovery ends the epoch of a partition when Redis has lost its
// data.
type Term interface {
	// Current returns the epochs to decide under now. It is never nil.
	Current() *CurrentEpochs
	// WaitReady returns nil when there is an epoch to decide under in at least one partition, and
	// the cause of ctx when ctx ends first.
	WaitReady(ctx context.Context) error
	// Unreachable returns an *UnreachableError when Redis or Postgres did not answer when they were last checked, nil
	// when they did.
	Unreachable() error
	// Verify returns nil if what was decided under a TermID, or under the part of it that EpochID
	// returns, may be published now. It returns ErrDataLost when another epoch of the partition is
	// current, and ErrBusy when another policy was stored, or when Postgres may have lost what was
	// decided: its commits were compared with the outcomes since.
	Verify(ctx context.Context, term string) error
	// Publishing begins a publication of outcomes. The caller calls it before Verify, and calls done
	// after it has published. certain says that nothing that was sent can be stored later.
	Publishing() (done func(certain bool))
	// Report reports what a script has found in a partition under an epoch: err is an ErrDataLost
	// or an ErrCorrupt. Resource is "" when the error concerns the whole partition.
	Report(partition int, epoch, resource string, err error)
}

// CurrentEpoch is what a worker decides under in a partition.
type CurrentEpoch struct {
	Name    string // of the epoch
	History string // of the server that has the epoch, "" when unknown; scripts refuse on a server with another one
	TermID  string // names the partition, the epoch and the version, see Term.Verify
	Err     error  // a *RebuildingError while nothing is decided in the partition; then the other fields are empty

	arg any // the first argument of every script
}

// CurrentEpochs are what a worker decides under. They do not change: when an epoch ends or begins,
// others replace them.
type CurrentEpochs struct {
	Ready    record.PartitionSet // the partitions that have an epoch
	Policies Policies            // as stored in Postgres; nil when they were not read: each worker then uses its own

	partitions [record.Partitions]CurrentEpoch
}

// NewCurrentEpochs returns the epochs of the partitions. It reads Name, History and Err of each. The version names
// what is the same in all partitions, "" when that is unknown.
func NewCurrentEpochs(
	partitions [record.Partitions]CurrentEpoch, policies Policies, version string,
) *CurrentEpochs {
	c := &CurrentEpochs{Policies: policies, partitions: partitions}
	if version != "" {
		version = versionSeparator + version
	}
	for p := range c.partitions {
		e := &c.partitions[p]
		if e.Err != nil {
			*e = CurrentEpoch{Err: e.Err}
			continue
		}
		c.Ready.Add(p)
		e.TermID, e.arg = EpochID(p, e.Name)+version, ScriptArg(e.Name, e.History, 0)
	}
	return c
}

// Partition returns the epoch of a partition.
func (c *CurrentEpochs) Partition(p int) *CurrentEpoch { return &c.partitions[p] }

// Of returns the epoch of a resource's partition.
func (c *CurrentEpochs) Of(resource string) *CurrentEpoch {
	return &c.partitions[record.Partition(resource)]
}

// Err returns nil while there is an epoch to decide under in any partition, else a *RebuildingError.
func (c *CurrentEpochs) Err() error {
	if c.Ready != 0 {
		return nil
	}
	return c.partitions[0].Err
}

// WithClock returns the same epochs with a clock in ms that the scripts use in place of Redis'
// clock, 0 for none. Only tests have one.
func (c *CurrentEpochs) WithClock(clock int64) *CurrentEpochs {
	if clock == 0 {
		return c
	}
	with := *c
	for p := range c.Ready.Each() {
		e := &with.partitions[p]
		e.arg = ScriptArg(e.Name, e.History, clock)
	}
	return &with
}

// ScriptArg returns the first argument of every script: epoch[@history[@clock]], see
// lua/prelude.lua. The history is "" when it is unknown. The clock is in ms, 0 for Redis' clock.
func ScriptArg(epoch, history string, clock int64) string {
	switch {
	case clock != 0:
		return epoch + "@" + history + "@" + strconv.FormatInt(clock, 10)
	case history != "":
		return epoch + "@" + history
	}
	return epoch
}

// versionSeparator separates the epoch and the version in a TermID.
const versionSeparator = "@"

// EpochID returns the part of a TermID that names a partition and its epoch.
func EpochID(partition int, epoch string) string { return strconv.Itoa(partition) + " " + epoch }

// UnreachableError says why a server did not answer when it was last checked.
type UnreachableError struct {
	Postgres bool // it was Postgres, else Redis
	Err      error
}

func (e *UnreachableError) Error() string { return e.Err.Error() }
func (e *UnreachableError) Unwrap() error { return e.Err }

// Server names the server.
func (e *UnreachableError) Server() string {
	if e.Postgres {
		return "postgres"
	}
	return "redis"
}

// RebuildingError is an ErrDataLost that says how far the rebuild is.
type RebuildingError struct {
	Progress string
	Silent   bool // the server does not answer: what is decided waits as in a rebuild, but nothing is known to be lost
}

func (e *RebuildingError) Error() string {
	if e.Silent {
		return e.Progress
	}
	return fmt.Sprintf("%v: %s", ErrDataLost, e.Progress)
}

// Is reports that a RebuildingError is an ErrDataLost.
func (*RebuildingError) Is(target error) bool { return target == ErrDataLost }
