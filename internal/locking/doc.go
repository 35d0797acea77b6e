// Package locking has the ways to lock a set of Redis keys. A lock orders work and tells the
// loser early; it never makes a result right. It knows nothing of holds: its callers name keys.
package locking
