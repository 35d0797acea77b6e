package stacktest

import "golang.org/x/sys/unix"

const (
	// memoryPath is where Linux has a file system in memory for every user.
	memoryPath = "/dev/shm"
	// memoryMin is the free space that the tests of all packages need there, with reserve.
	memoryMin = 4 << 30
)

// memoryDir returns the directory of a file system in memory for temporary files, "" when this machine
// has none with enough space, or none from which programs can be run. The servers of the tests create
// some ten thousand files, which on a disk takes as much processor time as the tests themselves.
func memoryDir() string {
	var fs unix.Statfs_t
	if err := unix.Statfs(memoryPath, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC || fs.Flags&unix.ST_NOEXEC != 0 ||
		fs.Bavail*uint64(fs.Bsize) < memoryMin || unix.Access(memoryPath, unix.W_OK|unix.X_OK) != nil {
		return ""
	}
	return memoryPath
}
