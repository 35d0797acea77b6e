package terminal

import "fmt"

// Counted returns a number and its noun, in the plural unless n is 1.
func Counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
