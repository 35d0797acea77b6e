package holds

import (
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"

	"holdfast/internal/locking"
)

// Partitions is the number of parts into which resources are divided. It is part of what is
// stored: another number finds nothing of what this one wrote, so it is checked at start.
const Partitions = 64

// NamespacePattern is the form of a namespace.
var NamespacePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// keyspace builds every Redis key, for the namespace that it is. Parts that go into a key are
// validated (namespace, resource, slot, uuid hold no colon and no brace) or stand last
// (request key), so no two can collide. So it is with the fields of a hash: a slot begins with no @,
// and a user has no space. What a script adds to prefix is listed in doc.go and built in lua/prelude.lua.
type keyspace string

// Partition returns the partition of a resource.
func Partition(resource string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(resource)) // a hash never returns an error
	return int(h.Sum32() % Partitions)
}

func (ns keyspace) partition(p int) string {
	return string(ns) + ":{" + strconv.Itoa(p) + "}:"
}

func (ns keyspace) epoch(p int) string  { return ns.partition(p) + "epoch" }
func (ns keyspace) agenda(p int) string { return ns.partition(p) + "agenda" }

// format is one key for all partitions.
func (ns keyspace) format() string { return ns.partition(0) + "format" }

// prefix begins every key of a resource.
func (ns keyspace) prefix(resource string) string {
	return ns.partition(Partition(resource)) + resource + ":"
}

func (ns keyspace) rev(resource string) string { return ns.prefix(resource) + "rev" }

// locks returns what is locked for some slots of a resource: fields of a hash, or keys on other
// servers. Its scope begins the hash and more keys, see package locking.
func (ns keyspace) locks(resource string, slots []string) locking.KeySet {
	prefix := ns.prefix(resource)
	set := locking.KeySet{
		Keys:    make([]string, len(slots)),
		Fence:   ns.partition(Partition(resource)) + "fence",
		Version: prefix + "rev",
		Scope:   prefix,
	}
	for i, slot := range slots {
		set.Keys[i] = set.Key(slot)
	}
	return set
}

// partitionOfHold returns the partition of a key that a keyspace notification names, or false
// when it is not the key of one of this namespace's holds.
func (ns keyspace) partitionOfHold(key string) (int, bool) {
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
