package recovery_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/holds"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

// TestCheckEpochs_LoginRefused_SaysSo reads the epochs with a login that Redis refuses, as after a change of the
// password.
func TestCheckEpochs_LoginRefused_SaysSo(t *testing.T) {
	t.Parallel()
	options, err := redis.ParseURL(stacktest.Shared().RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	options.Username, options.Password = "holdfast_nobody", "old"
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	err = recovery.CheckEpochs(t.Context(), stacktest.Namespace(t), client, &holds.CurrentEpochs{})
	if err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("the error is %v, want WRONGPASS", err)
	}
}

// TestEpochs_RebuildBegun_DataHasOldGeneration begins and completes a rebuild of all partitions.
func TestEpochs_RebuildBegun_DataHasOldGeneration(t *testing.T) {
	t.Parallel()
	var epochs recovery.Epochs
	for p := range epochs {
		epochs[p] = recovery.Epoch{Name: "database/5", Lost: "database/3"}
	}
	if n := epochs.OldestGeneration(); n != 3 {
		t.Errorf("the generation is %d before the rebuild is complete", n)
	}
	for p := range epochs {
		epochs[p] = recovery.Epoch{Name: "database/5", Complete: true}
	}
	if n := epochs.OldestGeneration(); n != 5 {
		t.Errorf("the generation is %d after that", n)
	}
}

func TestEpoch_EachStateOfARebuild_IsDescribed(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]recovery.Epoch{
		"waiting for a worker to rebuild it":              {},
		"waiting for a worker to rebuild it; why: a test": {Why: "a test"},
		"w1: starting; why: a test":                       {Why: "a test", Rebuilder: "w1"},
		"w1: reading outcomes, 1 of 2; why: a test":       {Why: "a test", Rebuilder: "w1", Progress: "reading outcomes, 1 of 2"},
	} {
		if got := e.DescribeProgress(); got != want {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
}
