package terminal

import (
	"os"
	"os/user"
)

// Operator returns the name of the operator who runs the program, user@host. What the system does not
// know is "unknown".
func Operator() string {
	name, host := "unknown", "unknown"
	if account, err := user.Current(); err == nil {
		name = account.Username
	}
	if found, err := os.Hostname(); err == nil {
		host = found
	}
	return name + "@" + host
}
