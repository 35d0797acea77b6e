package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
)

// The names of what a worker that has started servers tells others in its endpoints file.
const (
	nameNATSURL  = "HOLDFAST_NATS_URL"
	nameHTTPAddr = "HOLDFAST_HTTP_ADDR"
)

const (
	defaultHTTPAddr   = "127.0.0.1:8080"
	endpointsBytesMax = 64 << 10
)

// endpointsPath is where a worker in the same directory writes where its servers are.
var endpointsPath = filepath.Join(".holdfast", "endpoints.env")

// readEndpoints reads an endpoints file: lines NAME=VALUE, comments and empty lines. It passes
// over names that it does not know, so that a newer worker may write more. An absent file has none.
func readEndpoints(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read endpoints: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	found := make(map[string]string)
	lines := bufio.NewScanner(io.LimitReader(f, endpointsBytesMax))
	for lines.Scan() {
		name, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), "=")
		if name == nameNATSURL || name == nameHTTPAddr {
			found[name] = value
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read endpoints: %s: %w", path, err)
	}
	return found, nil
}

// endpoint returns what was given, else what the endpoints file says, else "".
func endpoint(given, name string) (string, error) {
	if given != "" {
		return given, nil
	}
	found, err := readEndpoints(endpointsPath)
	return found[name], err
}

// natsURL returns where NATS is.
func (p *program) natsURL() (string, error) {
	url, err := endpoint(p.NATSURL, nameNATSURL)
	if err == nil && url == "" {
		err = fmt.Errorf("where is NATS? There is no %s here: start `go run ./cmd/worker dev`, or give --nats-url or %s",
			endpointsPath, nameNATSURL)
	}
	return url, err
}

// httpAddr returns the worker's operations address.
func (p *program) httpAddr() (string, error) {
	addr, err := endpoint(p.HTTPAddr, nameHTTPAddr)
	if err == nil && addr == "" {
		addr = defaultHTTPAddr
	}
	return addr, err
}

// connect returns a client of the namespace. The caller calls disconnect.
func (p *program) connect() (client *events.Client, disconnect func(), err error) {
	url, err := p.natsURL()
	if err != nil {
		return nil, nil, err
	}
	logf := func(format string, args ...any) {
		fmt.Fprintf(p.err, "publisher: %s\n", printable(fmt.Sprintf(format, args...)))
	}
	nc, err := events.Connect(url, "holdfast publisher "+p.Namespace, logf, nats.Timeout(p.Timeout))
	if err != nil {
		return nil, nil, fmt.Errorf("%w (is there one? `go run ./cmd/worker dev` starts one)", err)
	}
	client, err = events.NewClient(nc, p.subjects())
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return client, nc.Close, nil
}
