package holds

import (
	"holdfast/internal/locking"
	"holdfast/internal/record"
)

// lockKeys returns the locks of some slots of a resource: fields of a hash, or keys on other
// servers. Its scope begins the hash and more keys, see package locking.
func lockKeys(keys record.Keyspace, resource string, slots []string) locking.KeySet {
	prefix := keys.Prefix(resource)
	set := locking.KeySet{
		Keys:    make([]string, len(slots)),
		Fence:   keys.Fence(record.Partition(resource)),
		Version: keys.Rev(resource),
		Scope:   prefix,
	}
	for i, slot := range slots {
		set.Keys[i] = set.Key(slot)
	}
	return set
}
