package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"

	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "write the table of settings into docs/settings.md")

// TestConfigurationTable_Settings_AreCurrent compares the table of settings in docs/settings.md with the
// flags.
func TestConfigurationTable_Settings_AreCurrent(t *testing.T) {
	t.Parallel()
	stacktest.CheckGenerated(t, "../../docs/settings.md", "configuration",
		"go test ./cmd/worker -run ConfigurationTable -update", configurationTable(), *update)
}

// publisherSettings are the rows of settings that only the publisher has. Another test checks its
// variables.
const publisherSettings = "| `HOLDFAST_WHO` | `--who` |  | Operator name, recorded with replays, edits and discards of dead letters. Default: user@host. | publisher |\n"

// configurationTable returns a row for each flag with a variable, of all commands. The flags of a
// group are together, in the order in which commands and flags are declared.
func configurationTable() string {
	type setting struct {
		*kong.Flag
		commands []string
	}
	var settings []*setting
	var groups []string
	for _, command := range commandsFrom("run") {
		for _, flag := range command.Flags {
			if flag.Hidden || len(flag.Envs) == 0 {
				continue
			}
			i := slices.IndexFunc(settings, func(s *setting) bool { return s.Envs[0] == flag.Envs[0] })
			if i < 0 {
				i, settings = len(settings), append(settings, &setting{Flag: flag})
			}
			settings[i].commands = append(settings[i].commands, command.Name)
			if group := groupOf(flag); !slices.Contains(groups, group) {
				groups = append(groups, group)
			}
		}
	}
	var b strings.Builder
	b.WriteString("| variable | flag | default | meaning | worker's commands |\n|---|---|---|---|---|\n")
	for _, group := range groups {
		first := true
		for _, s := range settings {
			if groupOf(s.Flag) != group {
				continue
			}
			if first {
				fmt.Fprintf(&b, "| **%s** | | | | |\n", group)
				first = false
			}
			fallback := s.Default
			if fallback != "" {
				fallback = "`" + fallback + "`"
			}
			fmt.Fprintf(&b, "| `%s` | `--%s` | %s | %s | %s |\n", s.Envs[0], s.Name, fallback, s.Help, strings.Join(s.commands, ", "))
		}
	}
	return b.String() + publisherSettings
}

// commandsFrom returns the commands, the named one first.
func commandsFrom(name string) []*kong.Node {
	commands := slices.Clone(newParser(streams{io.Discard, io.Discard}).Model.Children)
	slices.SortStableFunc(commands, func(a, b *kong.Node) int {
		return cmp.Compare(btoi(b.Name == name), btoi(a.Name == name))
	})
	return commands
}

func btoi(is bool) int {
	if is {
		return 1
	}
	return 0
}

// groupOf returns the heading of a flag in a command's help.
func groupOf(flag *kong.Flag) string {
	if flag.Group == nil {
		return "Programs"
	}
	title, _, _ := strings.Cut(strings.TrimSuffix(flag.Group.Title, ":"), ",") // as in "Policies, as set for the workers"
	return title
}
