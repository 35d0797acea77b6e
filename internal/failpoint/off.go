//go:build !failpoint

// Package failpoint lets tests kill a process between two steps. In a program that was built
// without the tag failpoint it does nothing and costs nothing.
package failpoint

// Hit marks a place between two steps.
func Hit(string) {}
