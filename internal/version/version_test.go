package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestLine_BuildInfo_OneLine(t *testing.T) {
	t.Parallel()
	platform := []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "arm64"}}
	vcs := append([]debug.BuildSetting{{Key: "vcs.revision", Value: "25c4dc4f"},
		{Key: "vcs.time", Value: "2026-11-22T20:00:00Z"}}, platform...)
	for want, info := range map[string]*debug.BuildInfo{
		"worker: revision 25c4dc4f, 2026-11-22T20:00:00Z; go1.26.8 linux/arm64": {GoVersion: "go1.26.8",
			Settings: vcs},
		"worker: revision 25c4dc4f, modified, 2026-11-22T20:00:00Z; go1.26.8 linux/arm64": {GoVersion: "go1.26.8",
			Settings: append(vcs, debug.BuildSetting{Key: "vcs.modified", Value: "true"})},
		"worker: revision v1.2.3; go1.26.8 linux/arm64": {GoVersion: "go1.26.8",
			Settings: platform, Main: debug.Module{Version: "v1.2.3"}},
		"worker: revision unknown; go1.26.8 linux/arm64": {GoVersion: "go1.26.8",
			Settings: platform, Main: debug.Module{Version: "(devel)"}},
	} {
		if got := line("worker", info); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := Line("worker"); !strings.HasPrefix(got, "worker: revision ") || !strings.Contains(got, runtime.Version()) {
		t.Errorf("of this build: %q", got)
	}
}
