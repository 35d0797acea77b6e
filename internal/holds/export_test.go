package holds

import (
	"context"
	"strings"

	"holdfast/internal/lua"
)

// In tests the scripts read their clock from a key beside the epoch when there is one, so that
// a test can stop time and move it. Nothing else about them is different.
func init() {
	const real = "local now = time[1] * 1000 + math.floor(time[2] / 1000)"
	const test = real + "\nlocal clock = redis.call('GET', EPOCH .. ':clock')\nif clock then now = tonumber(clock) end"
	for _, s := range []*lua.Script{
		&scriptPlace, &scriptClaim, &scriptSettle, &scriptRelease, &scriptExpire, &scriptForget,
		&scriptExtend, &scriptAvailability, &scriptShow, &scriptAgenda,
	} {
		source := source(s.Name)
		if !strings.Contains(source, real) {
			panic("the prelude's clock is not where the tests expect it")
		}
		source = strings.Replace(source, real, test, 1)
		*s = lua.New(s.Name, s.Flags, source)
		if twin, writes := dryTwins[s.Name]; writes {
			dryTwins[s.Name] = lua.New(twin.Name, twin.Flags, withoutWrites+source)
		}
	}
}

// ClockKeys are the keys from which the scripts of a namespace read their clock in tests.
func ClockKeys(namespace string) []string {
	keys := make([]string, Partitions)
	for p := range keys {
		keys[p] = keyspace(namespace).epoch(p) + ":clock"
	}
	return keys
}

// SweepAndAnnounce sweeps every partition once and announces what has lapsed.
func (e *Expirer) SweepAndAnnounce(ctx context.Context) error {
	if _, err := e.sweepOnce(ctx, everyPartition()); err != nil {
		return err
	}
	for len(e.departed) > 0 {
		if err := e.announce(ctx, <-e.departed); err != nil {
			return err
		}
	}
	return nil
}

// SweepOnly sweeps every partition once, as a worker does that dies before it announces.
func (e *Expirer) SweepOnly(ctx context.Context) error {
	_, err := e.sweepOnce(ctx, everyPartition())
	return err
}

// Key names what tests look at directly.
func Key(namespace, resource, name string) string { return keyspace(namespace).prefix(resource) + name }

// EpochKey is the epoch's key of a resource's partition.
func EpochKey(namespace, resource string) string {
	return keyspace(namespace).epoch(Partition(resource))
}

// PartitionOfHold is keyspace.partitionOfHold.
func PartitionOfHold(namespace, key string) (int, bool) {
	return keyspace(namespace).partitionOfHold(key)
}

// AnnounceLease is how long a hold that was handed out is not handed out again.
const AnnounceLease = announceLease

// SweepMax is how many holds one call lapses.
const SweepMax = sweepMax

// ReadAge is how old what was read from Postgres may be when it is decided on.
const ReadAge = readAge
