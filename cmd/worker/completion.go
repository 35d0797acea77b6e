package main

import (
	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
)

// completionCommand is `worker completion`.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

func (*completionCommand) Help() string {
	return `Prints a script. Run by a shell, it has the shell complete commands, flags and what some flags can be,
with the tab key.

Examples, for the shell that is open; for every new one add the line to the file behind it:

  source <(worker completion bash)     # ~/.bashrc
  source <(worker completion zsh)      # ~/.zshrc
  worker completion fish | source      # ~/.config/fish/config.fish`
}

// Run prints the script.
func (c *completionCommand) Run(k *kong.Context) error {
	return (&kongcompletion.Completion{Shell: c.Shell, Code: true}).Run(k)
}
