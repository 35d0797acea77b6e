package record

import (
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"
)

// Partitions is the number of parts into which resources are divided. It is part of what is
// stored: another number finds nothing of what this one wrote, so it is checked at start.
const Partitions = 64

// NamespacePattern is the form of a namespace.
var NamespacePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// Keyspace builds every Redis key, for the namespace that it is. Parts that go into a key are
// validated (namespace, resource, slot, uuid hold no colon and no brace) or stand last
// (request key), so no two can collide. So it is with the fields of a hash: a slot begins with no @,
// and a user has no space. What a script adds to prefix is listed in holds/doc.go and built in
// holds/lua/prelude.lua.
type Keyspace string

// Partition returns the partition of a resource.
func Partition(resource string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(resource)) // a hash never returns an error
	return int(h.Sum32() % Partitions)
}

// Partition begins every key of a partition.
func (ns Keyspace) Partition(p int) string {
	return string(ns) + ":{" + strconv.Itoa(p) + "}:"
}

// Epoch, Agenda and Fence are keys of a partition.
func (ns Keyspace) Epoch(p int) string  { return ns.Partition(p) + "epoch" }
func (ns Keyspace) Agenda(p int) string { return ns.Partition(p) + "agenda" }
func (ns Keyspace) Fence(p int) string  { return ns.Partition(p) + "fence" }

// Format is one key for all partitions.
func (ns Keyspace) Format() string { return ns.Partition(0) + "format" }

// Prefix begins every key of a resource.
func (ns Keyspace) Prefix(resource string) string {
	return ns.Partition(Partition(resource)) + resource + ":"
}

// Rev is the key that counts the changes of a resource's inventory.
func (ns Keyspace) Rev(resource string) string { return ns.Prefix(resource) + "rev" }

// PartitionOfHold returns the partition of a key that a keyspace notification names, or false
// when it is not the key of one of this namespace's holds.
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
