package terminal

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"
)

// Parse parses a command line, in which "help run" means "run --help", as other programs have it. It reports done when
// nothing is left to do: after flags such as --help, and when a shell requested completions, where the value of a flag with
// the tag predictor:"file" is a file.
func Parse(parser *kong.Kong, args []string) (command *kong.Context, done bool, err error) {
	parser.Exit = func(int) { done = true }
	kongcompletion.Register(parser, kongcompletion.WithPredictor("file", complete.PredictFiles("*")))
	if done {
		return nil, true, nil
	}
	if len(args) > 0 && args[0] == "help" {
		args = slices.Concat(args[1:], []string{"--help"})
	}
	command, err = parser.Parse(args)
	return command, done, err
}

// Completion is the command that prints the completion script of a shell.
type Completion struct {
	Program string `kong:"-"` // its name
	Shell   string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

// Help implements kong.HelpProvider.
func (c Completion) Help() string {
	return strings.ReplaceAll(`Prints a script for a shell. After the shell has run it, the tab key completes commands, flags,
values of flags, and files.

Examples for the current shell; to complete in every new shell, add the line to the file named beside it:

  source <(PROGRAM completion bash)     # ~/.bashrc
  source <(PROGRAM completion zsh)      # ~/.zshrc
  PROGRAM completion fish | source      # ~/.config/fish/config.fish`, "PROGRAM", c.Program)
}

// Run prints the script.
func (c *Completion) Run(k *kong.Context) error {
	return (&kongcompletion.Completion{Shell: c.Shell, Code: true}).Run(k)
}
