// Package version reports the source revision of a program.
package version

import (
	"fmt"
	"runtime/debug"
)

// Line returns the line that --version prints: the program, its source revision, and the Go
// version.
func Line(program string) string { return line(program, buildInfo()) }

// Revision returns the source revision of the program, "unknown" when it was built without version
// control.
func Revision() string {
	info := buildInfo()
	return revisionOf(info, settingsOf(info))
}

func buildInfo() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return &debug.BuildInfo{}
}

func settingsOf(info *debug.BuildInfo) map[string]string {
	settings := make(map[string]string, len(info.Settings))
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return settings
}

func revisionOf(info *debug.BuildInfo, settings map[string]string) string {
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
	return revision
}

func line(program string, info *debug.BuildInfo) string {
	settings := settingsOf(info)
	revision := revisionOf(info, settings)
	if at := settings["vcs.time"]; at != "" {
		revision += ", " + at
	}
	return fmt.Sprintf("%s: revision %s; %s %s/%s",
		program, revision, info.GoVersion, settings["GOOS"], settings["GOARCH"])
}
