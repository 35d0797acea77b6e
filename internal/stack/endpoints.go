package stack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"holdfast/internal/stack/endpoints"
)

// endpointsFile is the endpoints file in a directory that this stack has locked.
type endpointsFile struct {
	path    string
	lock    *os.File // nil if the directory is the home, which has its own lock
	created bool     // this stack has created the lock file
	content string   // "" until the file is written
}

// takeEndpoints locks a directory for the endpoints file until Close. It creates the directory if need
// be. It returns an *InUseError when another living stack uses the directory.
func (s *Stack) takeEndpoints(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	file := &endpointsFile{path: filepath.Join(dir, endpoints.FileName)}
	if s.home == nil || s.home.path != dir {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		_, err := os.Lstat(filepath.Join(dir, lockName))
		file.created = errors.Is(err, os.ErrNotExist)
		if file.lock, err = lockDir(dir); err != nil {
			return err
		}
	}
	s.endpoints = file
	return nil
}

// WriteEndpoints writes endpoints.env in Options.EndpointsDir atomically and returns its path. The file has
// one line for each server of the stack:
//
//	HOLDFAST_NATS_URL=nats://127.0.0.1:43210
//
// and then the lines of more, for example the address of a worker. Close removes the file, because other
// programs may use the ports later.
func (s *Stack) WriteEndpoints(more ...string) (path string, err error) {
	content := "# Written by Holdfast for its servers; removed when they stop.\n"
	for _, e := range []struct{ name, url string }{
		{"HOLDFAST_NATS_URL", s.NATSURL}, {"HOLDFAST_REDIS_URL", s.RedisURL}, {"HOLDFAST_POSTGRES_URL", s.PostgresURL},
		{"HOLDFAST_LOCK_REDIS_URLS", strings.Join(s.LockURLs, ",")},
	} {
		if e.url != "" {
			content += e.name + "=" + e.url + "\n"
		}
	}
	for _, line := range more {
		content += line + "\n"
	}
	if err := replaceFile(s.endpoints.path, content); err != nil {
		return "", fmt.Errorf("write endpoints: %w", err)
	}
	s.endpoints.content = content
	return s.endpoints.path, nil
}

// removeEndpoints removes the endpoints file and unlocks its directory. It keeps a file that another
// program has replaced without the lock.
func (s *Stack) removeEndpoints() error {
	file := s.endpoints
	if file == nil {
		return nil
	}
	now, err := os.ReadFile(file.path)
	if err == nil && string(now) == file.content {
		err = os.Remove(file.path)
	}
	var errs []error
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove endpoints: %w", err))
	}
	if file.created {
		errs = append(errs, os.Remove(file.lock.Name()))
	}
	if file.lock != nil {
		errs = append(errs, unlock(file.lock))
	}
	return errors.Join(errs...)
}

// replaceFile writes a file under another name and renames it, so that no reader sees a part of it.
func replaceFile(path, content string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = io.WriteString(f, content)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
