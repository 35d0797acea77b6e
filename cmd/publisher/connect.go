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
)

// The names in the endpoints file of a worker.
const (
	nameNATSURL   = "HOLDFAST_NATS_URL"
	nameNamespace = "HOLDFAST_NAMESPACE"
)

const (
	defaultDataDir   = ".holdfast"
	defaultNamespace = "holdfast"
)

// endpointsPath returns the path of the file with the addresses of the servers that a worker started.
func (c *common) endpointsPath() string {
	return filepath.Join(cmp.Or(c.DataDir, defaultDataDir), endpoints.FileName) // HOLDFAST_DATA_DIR may be empty
}

// endpoint returns given if it is not empty, else the value in the endpoints file, else "".
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

// setDefaults sets the namespace if it was not given. It takes that of the worker in the data
// directory, but only without a NATS URL: a given URL may belong to another worker.
func (c *common) setDefaults() (err error) {
	if c.Namespace == "" && c.NATSURL == "" {
		c.Namespace, err = c.endpoint("", nameNamespace)
	}
	if c.Namespace == "" {
		c.Namespace = defaultNamespace
	}
	return err
}

// readURL reads the URL of NATS if it was given as a file or by a context.
func (c *common) readURL() error {
	found, err := c.NATSFiles.FindURL(c.NATSURL)
	if err != nil {
		return misused("%v", err)
	}
	c.NATSURL = found
	return nil
}

// natsURL returns the URL of NATS.
func (p *program) natsURL() (string, error) {
	url, err := p.endpoint(p.NATSURL, nameNATSURL)
	if err == nil && url == "" {
		err = fmt.Errorf("NATS URL not set, and not in %s: start `worker dev` here, or give --nats-url or %s, "+
			"or the --data-dir of `worker run --embedded`", p.endpointsPath(), nameNATSURL)
	}
	return url, err
}

// connect returns a client of the namespace. The program disconnects at its end.
func (p *program) connect() (*client.Client, error) {
	url, err := p.natsURL()
	if err != nil {
		return nil, err
	}
	options, err := p.NATSFiles.Options(url)
	if err != nil {
		return nil, misused("%v", err)
	}
	options = append(options, nats.Timeout(p.Timeout))
	nc, err := events.Connect(url, "holdfast publisher "+p.Namespace, p.reportf, options...)
	switch {
	case errors.Is(err, events.ErrURL):
		return nil, misused("--nats-url: %v", err)
	case err != nil && p.NATSURL == "":
		return nil, fmt.Errorf("%w (the URL is from %s: the worker may have been killed, start `worker dev` again)",
			err, p.endpointsPath())
	case err != nil:
		return nil, err
	}
	p.disconnect = nc.Close
	events.OnRefusal(nc, func(refused *events.PermissionError) { p.refuse(refused) })
	return client.New(nc, p.namespace())
}
