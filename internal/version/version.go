// Package version reports the source revision of a program.
package version

import (
	"fmt"
	"runtime/debug"
)

// Line returns the line that --version prints: the program, its source revision, and the Go
// version.
func Line(program string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return line(program, info)
}

func line(program string, info *debug.BuildInfo) string {
	settings := make(map[string]string, len(info.Settings))
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	switch {
	case revision != "" && settings["vcs.modified"] == "true":
		revision += ", modified"
	case revision != "":
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		revision = info.Main.Version
	default: // go run, or a tree without version control
		revision = "unknown"
	}
	if at := settings["vcs.time"]; at != "" {
		revision += ", " + at
	}
	return fmt.Sprintf("%s: revision %s; %s %s/%s",
		program, revision, info.GoVersion, settings["GOOS"], settings["GOARCH"])
}
