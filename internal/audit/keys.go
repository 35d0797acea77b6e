package audit

import (
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
		return key{name: rest, ours: isPartitionOwn(rest) || rest == "format" && number == "0"}
	}
	k := key{resource: resource, name: suffix}
	kind, _, _ := strings.Cut(suffix, ":")
	k.ours = number == strconv.Itoa(record.Partition(resource)) && (isOwn(suffix) || isStray(kind))
	return k
}

// isPartitionOwn reports whether a key is one of those of a partition.
func isPartitionOwn(name string) bool {
	switch name {
	case "epoch", "primary", "fence", "agenda", "applied", "marking":
		return true
	}
	return false
}

// isOwn reports whether a key is one of those that every script is given.
func isOwn(name string) bool {
	switch name {
	case "counts", "records", "due", "departing", "tombstones", "rev", "users":
		return true
	}
	return false
}

// isStray reports whether keys of a kind are there because of a hold, or end by themselves.
func isStray(kind string) bool {
	switch kind {
	case "hold", "started", "request", "extension", "lock", "locks", "waited_for", "waiting", "queue", "gone":
		return true
	}
	return false
}
