package store_test

import (
	"reflect"
	"sync"
	"testing"
	"time"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// somePolicy is a policy whose settings all differ from each other.
var somePolicy = holds.Policy{
	HoldTTL: time.Minute, HoldTTLMax: 90 * time.Second, HoldLifetimeMax: 2 * time.Hour,
	PaymentWindow: 1500 * time.Millisecond,
	LatePayment:   holds.LateAcceptedIfFree, HoldsPerUser: 1, NightsMax: 2, HorizonDays: 3, RequestKeyTTL: 24 * time.Hour,
}

func (s harness) policies(t *testing.T) holds.Policies {
	t.Helper()
	state, err := s.State(t.Context(), "")
	stacktest.Must(t, err)
	return state.Policies
}

// TestStorePolicy_Changed_ComesIntoForceLater stores policies. The first is in force at once, the
// same policy again changes nothing, and a different one comes into force after a delay.
func TestStorePolicy_Changed_ComesIntoForceLater(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	if found := s.policies(t); found != nil {
		t.Errorf("before any is stored: %+v", found)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if in, err := s.StorePolicy(t.Context(), somePolicy); err != nil || in != 0 {
				t.Errorf("the first is in force in %v %v, want at once", in, err)
			}
		})
	}
	all.Wait()
	want := holds.Policies{{Since: time.Unix(0, 0).UTC(), Policy: somePolicy}}
	if found := s.policies(t); !reflect.DeepEqual(found, want) {
		t.Errorf("stored is %+v, want %+v", found, want)
	}
	for _, nights := range []int{7, 2} { // the last equals the first policy
		other := somePolicy
		other.NightsMax = nights
		before, err := s.Clock(t.Context())
		stacktest.Must(t, err)
		in, err := s.StorePolicy(t.Context(), other)
		if err != nil || in <= 0 {
			t.Errorf("another is in force in %v %v, want later", in, err)
		}
		found := s.policies(t)
		latest := found[len(found)-1]
		if latest.Policy != other || latest.Since.Before(before.Add(holds.PolicyDelay)) {
			t.Errorf("the latest is %+v, want %+v from %v after %v", latest, other, holds.PolicyDelay, before)
		}
	}
	if found := s.policies(t); len(found) != 3 || !found[1].Since.Before(found[2].Since) {
		t.Errorf("stored are %+v", found)
	}
}

// TestStorePolicy_OldPolicies_AreDeleted stores a policy after others have become so old that they
// decide no event any more.
func TestStorePolicy_OldPolicies_AreDeleted(t *testing.T) {
	t.Parallel()
	s := newHarness(t)
	for nights := range 3 {
		policy := somePolicy
		policy.NightsMax = nights + 1
		if _, err := s.StorePolicy(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
	}
	s.execute(t, `UPDATE policies SET since = since - interval '366 days' WHERE settings ->> 'nights-max' <> '3'`)
	latest := somePolicy
	latest.NightsMax = 3
	if _, err := s.StorePolicy(t.Context(), latest); err != nil {
		t.Fatal(err)
	}
	if found := s.policies(t); len(found) != 2 || found[0].NightsMax != 2 || found[1].NightsMax != 3 {
		t.Errorf("stored %+v, want the one in force a year ago and the later one", found)
	}
}
