package holds_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestKeys_AllVerbs_WriteOnlyKnownKeys has holds placed, refused, cancelled, paid and expired, with ids of all the
// characters that they may have, and compares every key that is in Redis then with KeysOf, and every
// field of counts and users with FieldsOf, which FuzzKeys examines.
func TestKeys_AllVerbs_WriteOnlyKnownKeys(t *testing.T) {
	t.Parallel()
	w := newHarness(t)
	const resource, slot = "Room_1-a", "A_1-b"
	w.setInventory(t, resource, slots(slot), 2)
	known, fields := make(map[string]string), make(map[string]string)
	know := func(user, key, uuid string) {
		parts := holds.KeyParts{Namespace: w.namespace, Resource: resource, User: user, RequestKey: key, Slot: slot, UUID: uuid}
		maps.Copy(known, holds.KeysOf(parts))
		maps.Copy(fields, holds.FieldsOf(parts))
	}
	request := func(user, key string, ttl int64) holds.Outcome {
		o := w.place(t, holds.PlaceRequest{Resource: resource, User: user, RequestKey: key, Selection: slots(slot), TTLSeconds: &ttl})[0]
		know(user, key, o.Hold.UUID)
		return o
	}
	expiring := created(t, request("ana:{1}*?>", "k:request:{}", 1))
	staying := created(t, request("ben:index:%", "k\\\"'~", 600))
	rejected(t, request("cleo", "third", 600), holds.ReasonSoldOut)
	w.release(t, holds.ReleaseRequest{Resource: resource, RequestKey: "never:seen:{2}"})
	know("missing", "never:seen:{2}", staying.HoldID.UUID)
	w.pass(t, 2*time.Second)
	w.sweep(t)
	paid := created(t, request("dora", "fourth", 600))
	if o := w.pay(t, paid.HoldID, "p"); o.Event != holds.EventHoldConfirmed {
		t.Fatalf("paid: %+v", o)
	}

	known[holds.Key(w.namespace, resource, "extension:cause")] = "\x00extension" // a cause is no id of others
	w.extend(t, holds.ExtendRequest{EventID: "cause", Hold: staying.HoldID, PaymentStarted: true})

	found, err := w.client.Keys(t.Context(), w.namespace+":*").Result()
	stacktest.Must(t, err)
	kinds := make(map[string]bool)
	for _, key := range found {
		meaning, isKnown := known[key]
		if !isKnown && !strings.HasSuffix(key, "}:epoch") {
			t.Errorf("%q is in Redis, and KeysOf does not build it", key)
		}
		if isKnown {
			kinds[strings.Split(meaning, "\x00")[1]] = true
		}
	}
	const want = "agenda primary counts records due tombstones rev users hold request extension started"
	for _, kind := range strings.Fields(want) {
		if !kinds[kind] {
			t.Errorf("no key for %s is in Redis: %v", kind, slices.Sorted(maps.Keys(kinds)))
		}
	}
	for hash, number := range map[string]int{"counts": 1, "users": 2} { // of the one hold that is live
		hash = holds.Key(w.namespace, resource, hash)
		its := w.client.HKeys(t.Context(), hash).Val()
		for _, field := range its {
			if _, isKnown := fields[hash+" "+field]; !isKnown {
				t.Errorf("%q is a field of %s, and FieldsOf does not build it", field, hash)
			}
		}
		if len(its) != number {
			t.Errorf("the fields of %s are %q", hash, its)
		}
	}
	if view, _, err := w.service.GetHold(t.Context(), expiring.HoldID); err != nil || view.State != holds.Expired {
		t.Errorf("the hold that had to expire: %+v %v", view, err)
	}
}
