package holds

import (
	"holdfast/internal/locking"
	"holdfast/internal/record"
)

// lockKeys returns the locks of some slots of a resource: fields of a hash, or keys on other
// servers. Its scope begins the hash and more keys, see package locking.
func lockKeys(keys record.Keyspace, resource string, slots []string) locking.KeySet {
	return locking.KeySet{
		Names: slots, Fence: keys.Fence(record.Partition(resource)), Version: keys.Rev(resource), Scope: keys.Prefix(resource),
	}
}
