package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/nats-io/nats.go"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/stack/endpoints"
	"holdfast/internal/terminal"
)

// The names of what a worker that has started servers tells others in its endpoints file.
const (
	nameNATSURL   = "HOLDFAST_NATS_URL"
	nameNamespace = "HOLDFAST_NAMESPACE"
)

const (
	defaultDataDir   = ".holdfast"
	defaultNamespace = "holdfast"
)

// endpointsPath is where a worker that has started its servers writes where they are.
func (c *common) endpointsPath() string {
	return filepath.Join(cmp.Or(c.DataDir, defaultDataDir), "endpoints.env") // an empty variable is none
}

// endpoint returns what was given, else what the endpoints file says, else "".
func (c *common) endpoint(given, name string) (string, error) {
	if given != "" {
		return given, nil
	}
	found, err := endpoints.Read(c.endpointsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return found[name], err
}

// setDefaults sets what was not given: the namespace is that of the worker in this directory, unless
// another NATS was named.
func (c *common) setDefaults() (err error) {
	if c.Namespace == "" && c.NATSURL == "" {
		c.Namespace, err = c.endpoint("", nameNamespace)
	}
	if c.Namespace == "" {
		c.Namespace = defaultNamespace
	}
	return err
}

// natsURL returns where NATS is.
func (p *program) natsURL() (string, error) {
	url, err := p.endpoint(p.NATSURL, nameNATSURL)
	if err == nil && url == "" {
		err = fmt.Errorf("where is NATS? %s does not say it: start `worker dev` here, or give --nats-url or %s, "+
			"or the --data-dir of `worker run --embedded`", p.endpointsPath(), nameNATSURL)
	}
	return url, err
}

// connect returns a client of the namespace. The caller calls disconnect.
func (p *program) connect() (cl *client.Client, disconnect func(), err error) {
	url, err := p.natsURL()
	if err != nil {
		return nil, nil, err
	}
	logf := func(format string, args ...any) {
		fmt.Fprintf(p.err, "publisher: %s\n", terminal.Printable(fmt.Sprintf(format, args...)))
	}
	nc, err := events.Connect(url, "holdfast publisher "+p.Namespace, logf, nats.Timeout(p.Timeout))
	switch {
	case errors.Is(err, events.ErrURL):
		return nil, nil, misused("--nats-url: %v", err)
	case err != nil && p.NATSURL == "":
		return nil, nil, fmt.Errorf("%w (%s says so: its worker may have been killed; `worker dev` starts another)",
			err, p.endpointsPath())
	case err != nil:
		return nil, nil, err
	}
	events.OnRefusal(nc, func(refused *events.PermissionError) { p.refuse(refused) })
	cl, err = client.New(nc, p.namespace())
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return cl, nc.Close, nil
}
