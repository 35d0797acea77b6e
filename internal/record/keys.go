package record

import (
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"
)

// Partitions is the number of partitions into which resources are divided. A program with another
// number would not find the stored keys, so workers check it at start.
const Partitions = 64

// NamespacePattern matches a valid namespace.
var NamespacePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// Keyspace is a namespace; its methods return the Redis keys of the namespace. Two keys never
// collide: parts of a key are validated (namespace, resource, slot and uuid contain no colon and no
// brace) or stand last (request key). The same holds for the fields of a hash: a slot does not begin
// with @, and a user contains no space. The doc comment of package holds lists what scripts add to
// Prefix; holds/lua/prelude.lua builds it.
type Keyspace string

// Partition returns the partition of a resource.
func Partition(resource string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(resource)) // a hash never returns an error
	return int(h.Sum32() % Partitions)
}

// Partition returns what every key of a partition begins with.
func (ns Keyspace) Partition(p int) string {
	return string(ns) + ":{" + strconv.Itoa(p) + "}:"
}

// Epoch, Agenda, Fence, Applied, Marking, Compared and Folds return keys of a partition.
func (ns Keyspace) Epoch(p int) string    { return ns.Partition(p) + "epoch" }
func (ns Keyspace) Agenda(p int) string   { return ns.Partition(p) + "agenda" }
func (ns Keyspace) Fence(p int) string    { return ns.Partition(p) + "fence" }
func (ns Keyspace) Applied(p int) string  { return ns.Partition(p) + "applied" }
func (ns Keyspace) Marking(p int) string  { return ns.Partition(p) + "marking" }
func (ns Keyspace) Compared(p int) string { return ns.Partition(p) + "compared" }
func (ns Keyspace) Folds(p int) string    { return ns.Partition(p) + "folds" }

// Moving returns a key that never exists: a server that is moving the partition's hash slot away does not answer about it.
func (ns Keyspace) Moving(p int) string { return ns.Partition(p) + "moving" }

// Format returns a key that exists once for all partitions.
func (ns Keyspace) Format() string { return ns.Partition(0) + "format" }

// Prefix returns what every key of a resource begins with.
func (ns Keyspace) Prefix(resource string) string {
	return ns.Partition(Partition(resource)) + resource + ":"
}

// Rev returns the key that counts the changes of a resource's inventory.
func (ns Keyspace) Rev(resource string) string { return ns.Prefix(resource) + "rev" }

// Fold returns the key of what a rebuild has read of a resource's holds.
func (ns Keyspace) Fold(resource string) string { return ns.Prefix(resource) + "fold" }

// PartitionOfHold returns the partition of the key of a hold, and false for any other key and for
// keys of other namespaces.
func (ns Keyspace) PartitionOfHold(key string) (int, bool) {
	rest, found := strings.CutPrefix(key, string(ns)+":{")
	if !found {
		return 0, false
	}
	number, rest, found := strings.Cut(rest, "}:")
	p, err := strconv.Atoi(number)
	if !found || err != nil || p < 0 || p >= Partitions {
		return 0, false
	}
	_, rest, _ = strings.Cut(rest, ":")
	return p, strings.HasPrefix(rest, "hold:")
}
