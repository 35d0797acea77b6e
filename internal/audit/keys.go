package audit

import (
	"strconv"
	"strings"

	"holdfast/internal/holds"
)

// keyspace is a namespace. It names the Redis keys that holds/doc.go describes.
type keyspace string

func (ns keyspace) partition(p int) string { return string(ns) + ":{" + strconv.Itoa(p) + "}:" }

func (ns keyspace) prefix(resource string) string {
	return ns.partition(holds.Partition(resource)) + resource + ":"
}

// of returns the KEYS of every script, in the order of lua/prelude.lua.
func (ns keyspace) of(resource string) []string {
	partition, prefix := ns.partition(holds.Partition(resource)), ns.prefix(resource)
	return []string{
		partition + "epoch", partition + "agenda",
		prefix + "counts", prefix + "records", prefix + "due", prefix + "departing", prefix + "tombstones",
		prefix + "rev", prefix + "users",
	}
}

// pattern returns the pattern of every key of a resource, or of all keys for "".
func (ns keyspace) pattern(resource string) string {
	if resource == "" {
		return string(ns) + ":{*"
	}
	return ns.prefix(resource) + "*"
}

// key is the parsed name of a key.
type key struct {
	resource string // "" for a key of a partition
	name     string // what follows the prefix
	ours     bool   // holds/doc.go describes it, and it is in the partition of its resource
}

// parse parses the name of a key.
func (ns keyspace) parse(name string) key {
	rest, _ := strings.CutPrefix(name, string(ns)+":{")
	number, rest, _ := strings.Cut(rest, "}:")
	resource, suffix, found := strings.Cut(rest, ":")
	if !found {
		return key{name: rest, ours: rest == "epoch" || rest == "fence" || rest == "agenda" ||
			rest == "format" && number == "0"}
	}
	k := key{resource: resource, name: suffix}
	kind, _, _ := strings.Cut(suffix, ":")
	k.ours = number == strconv.Itoa(holds.Partition(resource)) && (isOwn(suffix) || isStray(kind))
	return k
}

// isOwn reports whether a key is one of the keys that every script gets.
func isOwn(name string) bool {
	switch name {
	case "counts", "records", "due", "departing", "tombstones", "rev", "users":
		return true
	}
	return false
}

// isStray reports whether keys of a kind belong to a hold, or expire by themselves.
func isStray(kind string) bool {
	switch kind {
	case "hold", "started", "request", "extension", "lock", "locks", "waited_for", "waiting", "queue", "gone":
		return true
	}
	return false
}
