//go:build !linux

package stacktest

// memoryDir returns "": only Linux has a file system in memory for every user.
func memoryDir() string { return "" }
