package recovery_test

import (
	"errors"
	"testing"

	"holdfast/internal/recovery"
)

// TestWriteFormat_NewerFormatStored_ChangesNothing writes the format over each possible stored value.
func TestWriteFormat_NewerFormatStored_ChangesNothing(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	key := w.namespace + ":{0}:format"
	for _, c := range []struct {
		stored any // nil when none is stored
		err    error
	}{
		{nil, nil},
		{recovery.Format - 1, nil},
		{recovery.Format, nil},
		{recovery.Format + 1, recovery.ErrUnknownFormat},
		{"x", recovery.ErrUnknownFormat},
	} {
		if err := w.client.Del(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
		if c.stored != nil {
			if err := w.client.Set(t.Context(), key, c.stored, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		before := w.client.Get(t.Context(), key).Val()
		if err := recovery.WriteFormat(t.Context(), w.namespace, w.client); !errors.Is(err, c.err) {
			t.Errorf("over %v: %v, want %v", c.stored, err, c.err)
		}
		format, readErr := recovery.ReadFormat(t.Context(), w.namespace, w.client)
		if c.err == nil && (format != recovery.Format || readErr != nil) {
			t.Errorf("over %v the format is %d, %v", c.stored, format, readErr)
		}
		if after := w.client.Get(t.Context(), key).Val(); c.err != nil && after != before {
			t.Errorf("over %v the format was changed to %s", c.stored, after)
		}
	}
}
