package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/nats-io/nats.go"

	"holdfast/internal/events"
	"holdfast/internal/stack"
)

// The names of what a worker that has started servers tells others in its endpoints file.
const (
	nameNATSURL   = "HOLDFAST_NATS_URL"
	nameNamespace = "HOLDFAST_NAMESPACE"
)

const defaultNamespace = "holdfast"

// endpointsPath is where a worker in the same directory writes where its servers are.
var endpointsPath = filepath.Join(".holdfast", "endpoints.env")

// endpoint returns what was given, else what the endpoints file says, else "".
func endpoint(given, name string) (string, error) {
	if given != "" {
		return given, nil
	}
	found, err := stack.ReadEndpoints(endpointsPath)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return found[name], err
}

// settle sets what was not given: the namespace is that of the worker in this directory, unless
// another NATS was named.
func (c *common) settle() (err error) {
	if c.Namespace == "" && c.NATSURL == "" {
		c.Namespace, err = endpoint("", nameNamespace)
	}
	if c.Namespace == "" {
		c.Namespace = defaultNamespace
	}
	return err
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
	switch {
	case errors.Is(err, events.ErrURL):
		return nil, nil, misused("--nats-url: %v", err)
	case err != nil:
		return nil, nil, fmt.Errorf("%w (is there one? `go run ./cmd/worker dev` starts one)", err)
	}
	client, err = events.NewClient(nc, p.subjects())
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return client, nc.Close, nil
}
