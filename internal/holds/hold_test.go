package holds_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"holdfast/internal/holds"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// TestRecord_WrittenByFirstVersion_IsReadable has a record in Redis as the first version has written it, and reads
// one that is written now: workers of both may be at work, and a hold must end with each.
func TestRecord_WrittenByFirstVersion_IsReadable(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	request := holds.PlaceRequest{Resource: "room", User: "ana", RequestKey: "k", Metadata: []byte(`{"a":"b c"}`)}
	hold := created(t, w.place(t, request)[0])
	wantBrief(t, w.extend(t, holds.ExtendRequest{Hold: hold.HoldID, PaymentStarted: true}), holds.EventHoldExtended)
	records := holds.Key(w.namespace, "room", "records")
	first := fmt.Sprintf(`held %d %d 1 0 - ana k stock {} {"a":"b c"}`, hold.ExpiresAt.UnixMilli(), hold.CreatedAt.UnixMilli())
	if now := w.client.HGet(t.Context(), records, hold.HoldID.UUID).Val(); now != first {
		t.Errorf("a hold is written\n\t%s\nand the first version reads\n\t%s", now, first)
	}
	w.client.HSet(t.Context(), records, hold.HoldID.UUID, first)
	w.pass(t, w.policy.HoldTTL+time.Second)
	if expired := w.sweep(t); len(expired) != 1 || expired[0].Hold != hold.HoldID {
		t.Errorf("expired: %+v", expired)
	}
	w.assertNothingHeld(t, "room")
}

// TestHoldID_New_IsUUIDv7 checks the form of a hold id: <resource_id>.<32 lowercase hex of a UUIDv7>.
func TestHoldID_New_IsUUIDv7(t *testing.T) {
	t.Parallel()
	before := time.Now().Truncate(time.Millisecond)
	id := holds.NewHoldID("room")
	parsed, err := uuid.Parse(id.UUID)
	if err != nil || parsed.Version() != 7 || parsed.Variant() != uuid.RFC4122 || len(id.UUID) != 32 {
		t.Errorf("%s: %v", id, err)
	}
	if at := id.CreatedAt(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("%s was created at %v", id, at)
	}
}

// TestValid_AnyText_IsWhatPatternMatches compares the checks of names with their patterns.
func TestValid_AnyText_IsWhatPatternMatches(t *testing.T) {
	t.Parallel()
	texts := rapid.OneOf(rapid.String(), rapid.StringMatching(`[-A-Za-z0-9_]{0,70}`), rapid.StringMatching(`[0-9a-f]{31,33}`))
	uuids := regexp.MustCompile(`^[0-9a-f]{32}$`)
	rapid.Check(t, func(t *rapid.T) {
		text := texts.Draw(t, "text")
		if holds.ValidResource(text) != holds.ResourcePattern.MatchString(text) ||
			holds.ValidSlot(text) != holds.SlotPattern.MatchString(text) || holds.ValidUUID(text) != uuids.MatchString(text) {
			t.Fatalf("%q: %v, %v, %v", text, holds.ValidResource(text), holds.ValidSlot(text), holds.ValidUUID(text))
		}
	})
}
