package stack

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// cacheDir returns the directory for the Postgres template and for locks between processes of this
// user: holdfast in the user's cache directory or, if the user has none, a directory in os.TempDir
// that only the user can write to.
func cacheDir() (string, error) {
	if base, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(base, "holdfast")
		if err := os.MkdirAll(dir, 0o700); err == nil && ownDir(dir) == nil {
			return dir, nil
		}
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-cache-%d", os.Geteuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return "", fmt.Errorf("cache directory: %w", err)
	}
	if err := ownDir(dir); err != nil {
		return "", fmt.Errorf("cache directory: %w", err)
	}
	return dir, nil
}

// ownDir returns an error unless path is a directory of this user that others cannot write to.
// Otherwise another user could change the data of our servers.
func ownDir(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() || info.Mode()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user can write to", path)
	}
	return nil
}
