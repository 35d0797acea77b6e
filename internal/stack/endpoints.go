package stack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"holdfast/internal/stack/endpoints"
)

// endpointsFile is the endpoints file of a directory that this stack has locked.
type endpointsFile struct {
	lock    *os.File // nil if the directory is the home, which has its own lock
	created bool     // this stack has created the lock file
	content string   // "" until the file is written
}

// takeEndpoints locks a directory for the endpoints file until Close. It creates the directory if need
// be. It returns an *InUseError when another living stack uses the directory. A second call for the same
// directory returns the same file.
func (s *Stack) takeEndpoints(dir string) (*endpointsFile, string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if taken, ok := s.endpoints[dir]; ok {
		return taken, dir, nil
	}
	file := &endpointsFile{}
	if s.home == nil || s.home.path != dir {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, "", err
		}
		_, err := os.Lstat(filepath.Join(dir, lockName))
		file.created = errors.Is(err, os.ErrNotExist)
		if file.lock, err = lockDir(dir); err != nil {
			return nil, "", err
		}
	}
	s.endpoints[dir] = file
	return file, dir, nil
}

// WriteEndpoints writes dir/endpoints.env atomically and returns its path. The file has one line for each
// server of the stack:
//
//	HOLDFAST_NATS_URL=nats://127.0.0.1:43210
//
// and then the lines of more, for example the address of a worker. WriteEndpoints locks dir, as
// Options.EndpointsDir does, if Start has not. Close removes the file, because other programs may use the
// ports later.
func (s *Stack) WriteEndpoints(dir string, more ...string) (path string, err error) {
	file, dir, err := s.takeEndpoints(dir)
	if err != nil {
		return "", fmt.Errorf("write endpoints: %w", err)
	}
	path = filepath.Join(dir, endpoints.FileName)
	content := "# Written by Holdfast for its servers; removed when they stop.\n"
	for _, e := range []struct{ name, url string }{
		{"HOLDFAST_NATS_URL", s.NATSURL}, {"HOLDFAST_REDIS_URL", s.RedisURL}, {"HOLDFAST_POSTGRES_URL", s.PostgresURL},
	} {
		if e.url != "" {
			content += e.name + "=" + e.url + "\n"
		}
	}
	for _, line := range more {
		content += line + "\n"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := replaceFile(path, content); err != nil {
		return "", fmt.Errorf("write endpoints: %w", err)
	}
	file.content = content
	return path, nil
}

// removeEndpoints removes the endpoints files and unlocks their directories. It keeps a file that another
// program has replaced without the lock.
func (s *Stack) removeEndpoints() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for dir, file := range s.endpoints {
		path := filepath.Join(dir, endpoints.FileName)
		now, err := os.ReadFile(path)
		if err == nil && string(now) == file.content {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove endpoints: %w", err))
		}
		if file.created {
			errs = append(errs, os.Remove(file.lock.Name()))
		}
		if file.lock != nil {
			errs = append(errs, unlock(file.lock))
		}
	}
	clear(s.endpoints)
	return errors.Join(errs...)
}

// replaceFile writes a file under another name and renames it, so that no reader sees a part of it.
func replaceFile(path, content string) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
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
