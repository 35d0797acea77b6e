package audit

import (
	"embed"
	"fmt"
	"strconv"

	"holdfast/internal/lua"
	"holdfast/internal/record"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// The scripts. The header of each file describes its ARGV and its reply; lua/prelude.lua describes
// KEYS. All except repair and adjust only read.
var (
	scriptInspect = load("inspect", "no-writes")
	scriptPage    = load("page", "no-writes")
	scriptStrays  = load("strays", "no-writes")
	scriptRepair  = load("repair", "")
	scriptAdjust  = load("adjust", "")
)

func load(name, flags string) lua.Script {
	return lua.New("audit "+name, flags, source("prelude")+"\n"+source(name)+"\n")
}

func source(name string) string { return lua.Source(luaFiles, name) }

// ScriptCommands returns the commands that the scripts use: those of the scripts that only read,
// and those of all scripts. See holds.ScriptCommands.
func ScriptCommands() (reading, all []string) {
	read := source("prelude") + source("inspect") + source("page") + source("strays")
	return lua.Commands(read), lua.Commands(read + source("repair") + source("adjust"))
}

// newCall prepares a script on a resource. args follow the three that every script takes.
func (l *inspector) newCall(script lua.Script, resource string, args ...any) *lua.Call {
	return &lua.Call{Script: script, Keys: l.keys.of(resource),
		Args: append([]any{l.epochs[record.Partition(resource)], resource, l.keys.Prefix(resource)}, args...)}
}

// statusLost is the status of a script that found another epoch.
const statusLost = "lost"

// words reads the reply of a script from left to right. After an error it returns zero values.
type words struct {
	left []string
	err  error
}

func (w *words) text() string {
	if len(w.left) == 0 {
		if w.err == nil {
			w.err = fmt.Errorf("reply too short")
		}
		return ""
	}
	word := w.left[0]
	w.left = w.left[1:]
	return word
}

func (w *words) number() int64 {
	word := w.text()
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("reply has %q instead of a number", word)
	}
	return n
}

// set reads a number n and n words.
func (w *words) set() map[string]bool {
	all := make(map[string]bool)
	for n := w.number(); n > 0 && w.err == nil; n-- {
		all[w.text()] = true
	}
	return all
}

// counters reads a number n and n counters, which had their values at a time.
func (w *words) counters(at readTime) counters {
	all := make(counters)
	for n := w.number(); n > 0 && w.err == nil; n-- {
		of := counterName{Kind(w.text()), w.text()}
		all[of] = &counter{found: w.text(), readTime: at}
	}
	return all
}

func (w *words) differences() (all []difference) {
	for n := w.number(); n > 0 && w.err == nil; n-- {
		all = append(all, difference{Kind(w.text()), w.text(), w.text(), w.text()})
	}
	return all
}

// records reads the rest of the reply.
func (w *words) records() (all []holdRecord) {
	for len(w.left) > 0 && w.err == nil {
		r, err := parseRecord(w.text(), w.text(), w.number())
		if err != nil {
			w.err = err
		}
		all = append(all, r)
	}
	return all
}
