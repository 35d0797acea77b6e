package audit

import (
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/record"
)

// keyspace builds and reads the Redis keys of a namespace.
type keyspace struct{ record.Keyspace }

func newKeyspace(namespace string) keyspace { return keyspace{record.Keyspace(namespace)} }

// of returns the KEYS of every script, in the order of lua/prelude.lua.
func (ns keyspace) of(resource string) []string {
	partition, prefix := record.Partition(resource), ns.Prefix(resource)
	return []string{
		ns.Epoch(partition), ns.Agenda(partition),
		prefix + "counts", prefix + "records", prefix + "due", prefix + "departing", prefix + "tombstones", ns.Rev(resource), prefix + "users",
	}
}

// pattern matches every key of a resource, or of all when it is "".
func (ns keyspace) pattern(resource string) string {
	if resource == "" {
		return string(ns.Keyspace) + ":{*"
	}
	return ns.Prefix(resource) + "*"
}

// key is what the name of a key says.
type key struct {
	resource string // "" = it is a partition's own
	name     string // what follows the prefix
	ours     bool   // it is one that holds/doc.go knows, in the partition of its resource
}

// parse reads the name of a key.
func (ns keyspace) parse(name string) key {
	rest, _ := strings.CutPrefix(name, string(ns.Keyspace)+":{")
	number, rest, _ := strings.Cut(rest, "}:")
	resource, suffix, found := strings.Cut(rest, ":")
	if !found {
		return key{name: rest, ours: slices.Contains(ofPartition, rest) || rest == "format" && number == "0"}
	}
	k := key{resource: resource, name: suffix}
	kind, _, _ := strings.Cut(suffix, ":")
	k.ours = number == strconv.Itoa(record.Partition(resource)) && (isOwn(suffix) || slices.Contains(ofHolds, kind))
	return k
}

// The names of keys, after the prefix.
var (
	ofPartition = []string{"epoch", "primary", "fence", "agenda", "applied", "marking", "compared", "folds"}
	ofResource  = []string{"counts", "records", "due", "departing", "tombstones", "rev", "users"}
	// What the names of keys begin with that are there because of a hold, or end by themselves.
	ofHolds = []string{
		"hold", "started", "request", "extension", "lock", "locks", "waited_for", "waiting", "queue", "gone", "fold",
	}
)

// isOwn reports whether a key is one of those that every script is given.
func isOwn(name string) bool { return slices.Contains(ofResource, name) }
