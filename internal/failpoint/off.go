//go:build !failpoint

// Package failpoint lets tests kill or stop a process between two steps. In programs built without the
// tag failpoint it does nothing and costs nothing.
package failpoint

// Hit marks a place between two steps.
func Hit(string) {}
