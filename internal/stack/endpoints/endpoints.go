// Package endpoints reads the file in which `worker dev` and `worker run --embedded` write where
// their servers are. It starts no servers, so that a program that only reads the file links none;
// package stack writes it.
package endpoints

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// FileName is the name of the file in the data directory of the worker.
	FileName = "endpoints.env"
	// bytesMax is the size of the largest file that Read accepts.
	bytesMax = 64 << 10
)

// ReadIn reads the file in a directory, as Read does. It returns nothing when the file does not exist.
func ReadIn(dir string) (map[string]string, error) {
	found, err := Read(filepath.Join(dir, FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return found, err
}

// Read reads the lines HOLDFAST_NAME=VALUE of a file and returns the values by name. It skips empty
// lines and lines that begin with #. The error is an os.ErrNotExist if the file does not exist. Any
// other line is an error, and so is a file of more than 64 KiB.
func Read(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read endpoints: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	found := map[string]string{}
	limited := &io.LimitedReader{R: f, N: bytesMax + 1}
	lines := bufio.NewScanner(limited)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || value == "" || !strings.HasPrefix(name, "HOLDFAST_") {
			return nil, fmt.Errorf("read endpoints: %s:%d: not a line HOLDFAST_NAME=VALUE", path, n)
		}
		found[name] = value
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read endpoints: %s: %w", path, err)
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("read endpoints: %s: more than %d bytes", path, bytesMax)
	}
	return found, nil
}
