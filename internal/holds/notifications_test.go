package holds_test

import (
	"testing"

	"github.com/rs/zerolog"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestWatch_Subscribed_SweepsAllPartitions lets a hold expire while no worker is subscribed and the
// timer is disabled: before the first subscription, and before the one that follows a cut. It runs
// alone, because it cuts all subscriptions of the server and disables notifications.
func TestWatch_Subscribed_SweepsAllPartitions(t *testing.T) {
	w := newRealTimeHarness(t)
	ctx := t.Context()
	w.setInventory(t, "tent", holds.SlotSelection{}, 1)
	expire := func() {
		hold := created(t, w.place(t, holds.PlaceRequest{Resource: "tent", User: "ana", TTLSeconds: seconds(1)})[0]).HoldID
		key := holds.Key(w.namespace, "tent", "hold:"+hold.UUID)
		stacktest.Eventually(t, "the deadline", func() bool { return w.client.Exists(ctx, key).Val() == 0 })
	}
	expire()
	runExpirer(t, holds.NewExpirer(w.service, w, holds.ExpirerOptions{NoTimer: true}, zerolog.Nop()))
	stacktest.Eventually(t, "the sweep after the first subscription", func() bool { return w.heldCount(t, "tent") == "0" })

	stacktest.Must(t, w.client.ConfigSet(ctx, "notify-keyspace-events", "").Err()) // like a server that has restarted
	expire()
	stacktest.Eventually(t, "the sweep after the cut", func() bool {
		stacktest.Must(t, w.client.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
		return w.heldCount(t, "tent") == "0"
	})
}
