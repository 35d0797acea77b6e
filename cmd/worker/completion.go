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
	return `With this script a shell completes commands, flags and the values of some flags on the tab key.

Examples. A line takes effect in the current shell; add it to the file named behind it for all new
shells:

  source <(worker completion bash)     # ~/.bashrc
  source <(worker completion zsh)      # ~/.zshrc
  worker completion fish | source      # ~/.config/fish/config.fish`
}

// Run prints the script.
func (c *completionCommand) Run(k *kong.Context) error {
	return (&kongcompletion.Completion{Shell: c.Shell, Code: true}).Run(k)
}
