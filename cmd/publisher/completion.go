package main

import (
	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
)

// completion prints the completion script of a shell.
type completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

func (*completion) Help() string {
	return `Prints a script for a shell. After the shell has run it, the tab key completes commands, flags,
values of flags, and files.

Examples for the current shell; to complete in every new shell, add the line to the file named beside it:

  source <(publisher completion bash)     # ~/.bashrc
  source <(publisher completion zsh)      # ~/.zshrc
  publisher completion fish | source      # ~/.config/fish/config.fish`
}

func (v *completion) Run(k *kong.Context) error {
	return (&kongcompletion.Completion{Shell: v.Shell, Code: true}).Run(k)
}
