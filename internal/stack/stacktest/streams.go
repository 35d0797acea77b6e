package stacktest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// BackUpStreams copies streams and their consumers with the nats command. The function that it returns replaces them by
// their copies.
func BackUpStreams(t testing.TB, natsURL string, js jetstream.JetStream, streams ...string) (restore func()) {
	t.Helper()
	NeedTool(t, "nats")
	dir := t.TempDir()
	command := func(args ...string) {
		t.Helper()
		args = append([]string{"--server", natsURL, "stream"}, args...)
		if output, err := exec.CommandContext(t.Context(), "nats", args...).CombinedOutput(); err != nil {
			t.Fatalf("nats %v: %v\n%s", args, err, output)
		}
	}
	for _, stream := range streams {
		command("backup", stream, filepath.Join(dir, stream), "--no-progress")
	}
	return func() {
		t.Helper()
		for _, stream := range streams {
			Must(t, js.DeleteStream(t.Context(), stream))
			command("restore", filepath.Join(dir, stream), "--no-progress")
		}
	}
}
