package robustness

import (
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed testdata/clock.c
var clockSource []byte

// buildShim compiles the library that moves the clock of a process, and returns its path. Without a C
// compiler it returns "", and no fault moves a clock.
func buildShim(ctx context.Context, dir string) string {
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return ""
	}
	for _, compiler := range []string{"cc", "gcc", "clang"} {
		path, err := exec.LookPath(compiler)
		if err != nil {
			continue
		}

		build := exec.CommandContext(ctx, path, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl")
		if build.Run() == nil {
			return library
		}
	}
	return ""
}
