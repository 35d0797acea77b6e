package record_test

import (
	"testing"

	"holdfast/internal/record"
)

// TestPartitionOfHold_ForeignKey_IsIgnored checks keys that other programs may publish in notifications.
func TestPartitionOfHold_ForeignKey_IsIgnored(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"holdfast:{7}:room:hold:0123": true,
		"holdfast:{64}:room:hold:0":   false,
		"holdfast:{-1}:room:hold:0":   false,
		"holdfast:{x}:room:hold:0":    false,
		"holdfast:{7}:room:request:0": false,
		"holdfast:{7}:epoch":          false,
		"holdfast2:{7}:room:hold:0":   false,
		"session:1":                   false,
		"":                            false,
	} {
		if _, ours := record.Keyspace("holdfast").PartitionOfHold(key); ours != want {
			t.Errorf("%q is the key of a hold: %v, want %v", key, ours, want)
		}
	}
}
