package recovery

import (
	"embed"
	"strings"

	"holdfast/internal/holds"
	"holdfast/internal/lua"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// allowOOM is the flag of scripts that run when Redis is out of memory. A recovery writes only what was granted before, as
// Redis does when it loads its own files, and frees memory first when it replaces all. Until it has ended, no hold ends and
// frees any.
const allowOOM = "allow-oom"

// The scripts. Each file's header lists its ARGV and what it returns. All but compared, marker and swap begin with the
// prelude of package holds.
var (
	scriptRebuild  = holds.NewScript("rebuild", allowOOM, source("rebuild"))
	scriptWipe     = holds.NewScript("wipe", allowOOM, source("wipe"))
	scriptSwap     = lua.New("swap", allowOOM, source("swap"))
	scriptMarker   = lua.New("marker", allowOOM, source("marker"))
	scriptCompared = lua.New("compared", allowOOM, source("compared"))
	scriptReplay   = holds.NewScript("replay", allowOOM, source("replay"))
)

// source returns a file under lua/.
func source(name string) string { return lua.Source(luaFiles, name) }

// ScriptCommands returns the Redis commands that the scripts run, see holds.ScriptCommands.
func ScriptCommands() []string {
	var all strings.Builder
	for _, name := range []string{"rebuild", "wipe", "swap", "marker", "compared", "replay"} {
		all.WriteString(source(name))
	}
	return lua.Commands(all.String())
}
