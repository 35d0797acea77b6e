package main

import (
	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
)

// completion prints what a shell has to run to complete what is typed.
type completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

// Help implements kong's detailed help.
func (*completion) Help() string {
	return `Prints a script. Run by a shell, it has the shell complete verbs, flags, what some flags can be, and files, with the tab key.

Examples, for the shell that is open; for every new one add the line to the file behind it:

  source <(publisher completion bash)     # ~/.bashrc
  source <(publisher completion zsh)      # ~/.zshrc
  publisher completion fish | source      # ~/.config/fish/config.fish`
}

// Run prints the script.
func (v *completion) Run(k *kong.Context) error {
	return (&kongcompletion.Completion{Shell: v.Shell, Code: true}).Run(k)
}
