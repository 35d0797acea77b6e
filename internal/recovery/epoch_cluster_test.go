package recovery_test

import (
	"errors"
	"strings"
	"testing"

	"holdfast/internal/holds"
	"holdfast/internal/record"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestCheckEpochs_OneShardDown_FindsLossOfAnother kills one of three primaries of which another one has lost the
// epoch of a partition. The check names both.
func TestCheckEpochs_OneShardDown_FindsLossOfAnother(t *testing.T) {
	t.Parallel()
	cluster := stacktest.StartRedisCluster(t, 3, 0)
	client, keys := cluster.ClusterClient(), record.Keyspace("holdfast")
	const epoch = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	for p := range record.Partitions {
		if err := client.Set(t.Context(), keys.Epoch(p), epoch, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	current := recovery.StaticTerm(epoch, "").Current()
	if err := recovery.CheckEpochs(t.Context(), "holdfast", client, current); err != nil {
		t.Fatal(err)
	}
	down, lost, silent := cluster.NodeOf(keys.Epoch(0)), -1, record.PartitionSet(0)
	for p := range record.Partitions {
		if cluster.NodeOf(keys.Epoch(p)) == down {
			silent.Add(p)
		} else {
			lost = p // a later one than the first of the server that is down
		}
	}
	if err := client.Del(t.Context(), keys.Epoch(lost)).Err(); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Nodes[down].Kill(); err != nil {
		t.Fatal(err)
	}
	err := recovery.CheckEpochs(t.Context(), "holdfast", client, current)
	if !errors.Is(err, holds.ErrDataLost) || !strings.HasPrefix(err.Error(), record.PartitionSetOf(lost).String()+":") ||
		!strings.Contains(err.Error(), "epochs of "+silent.String()) {
		t.Errorf("lost %d, silent %v: %v", lost, silent, err)
	}
}
