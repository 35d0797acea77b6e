package recovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/holds"
	"holdfast/internal/stack/stacktest"
)

// TestMarker_FileReadWithoutPermissions_HoldsAreBroughtBack restarts a Redis whose default user may do nothing. Redis reads
// its append-only file as that user: it refuses every transaction in it, also those of scripts that have written more than
// once, and runs the other commands. The marker must not be among those that it runs.
func TestMarker_FileReadWithoutPermissions_HoldsAreBroughtBack(t *testing.T) {
	t.Parallel()
	dir, port := t.TempDir(), stacktest.QuietPorts(t, 1)[0]
	config := fmt.Sprintf("port %d\nbind 127.0.0.1\nsave \"\"\nappendonly yes\nuser admin on nopass ~* &* +@all\nuser default off\n", port)
	if err := os.WriteFile(filepath.Join(dir, "redis.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("redis://admin:any@127.0.0.1:%d", port)
	client := stacktest.ConnectRedis(t, url)
	stop := stacktest.RunRedis(t, client, dir, "redis.conf")
	w := newHarnessOn(t, url)
	w.setInventory(t, "room", holds.SlotSelection{}, 1)
	w.mark(t)
	if err := client.BgRewriteAOF(t.Context()).Err(); err != nil { // what is older is not read as commands
		t.Fatal(err)
	}
	stacktest.Eventually(t, "the file to be rewritten", func() bool {
		info := client.InfoMap(t.Context(), "persistence").Val()["Persistence"]
		return info["aof_rewrite_in_progress"] == "0" && info["aof_rewrite_scheduled"] == "0"
	})
	w.place(t, holds.PlaceRequest{Resource: "room", User: "ana"})
	w.mark(t)
	stop()
	stacktest.RunRedis(t, client, dir, "redis.conf")
	if r := w.resume(t, &replayLog{}); w.held(t, "room") != 1 {
		t.Errorf("resumed %+v, and the hold is not there", r)
	}
}
