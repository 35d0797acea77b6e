package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
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

// endpointsPath returns the path of the file with the addresses of the servers that a worker started.
func (c *common) endpointsPath() string { return filepath.Join(c.DataDir, endpoints.FileName) }

// setDefaults sets the URL of NATS to that of a file or a context. Without one it sets the URL and the
// namespace, if that was not given, to those of the worker in the data directory. It takes the namespace only
// without a URL: a given URL may belong to another worker.
func (c *common) setDefaults() (err error) {
	if c.NATSURL, err = c.NATSFiles.FindURL(c.NATSURL); err != nil {
		return misused("%v", err)
	}
	c.DataDir = cmp.Or(c.DataDir, ".holdfast") // the variable may be empty
	if c.NATSURL == "" {
		found, err := endpoints.ReadIn(c.DataDir)
		if err != nil {
			return err
		}
		c.foundURL = found[nameNATSURL]
		c.Namespace = cmp.Or(c.Namespace, found[nameNamespace])
	}
	c.Namespace = cmp.Or(c.Namespace, "holdfast")
	return nil
}

// natsURL returns the URL of NATS.
func (p *program) natsURL() (string, error) {
	url := cmp.Or(p.NATSURL, p.foundURL)
	if url == "" {
		return "", misused("NATS URL not set, and not in %s: start `worker dev` here, or give --nats-url or %s, "+
			"or the --data-dir of `worker run --embedded`", p.endpointsPath(), nameNATSURL)
	}
	return url, nil
}

// checkReplies returns an error if no outcome reaches this program, because of the inboxes of its context.
func (p *program) checkReplies() error {
	if err := p.NATSFiles.CheckReplies(); err != nil {
		return misused("--context: %v", err)
	}
	return nil
}

// connect returns a client of the namespace, always the same. The program disconnects at its end.
func (p *program) connect(ctx context.Context) (*client.Client, error) {
	if p.client != nil {
		return p.client, nil
	}
	url, err := p.natsURL()
	if err != nil {
		return nil, err
	}
	options, err := p.NATSFiles.Options(url)
	if err != nil {
		return nil, misused("%v", err)
	}
	options = append(options, nats.Timeout(p.Timeout))
	nc, err := events.ConnectUntil(ctx, url, "holdfast publisher "+p.Namespace, p.reportf, options...)
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
	if p.client, err = client.New(nc, p.namespace()); err != nil {
		return nil, err
	}
	p.client.MayLeave = true
	return p.client, nil
}

// ask connects, sends a query within the timeout, and prints the answer: with -o json its body, else by
// show. It turns the refusal of a query into the error that the exit code needs.
func ask[T any](
	ctx context.Context, p *program, endpoint string, query any, show func(found T, body []byte) error,
) error {
	cl, err := p.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	found, body, err := client.Ask[T](ctx, cl, endpoint, query)
	refused, isRefused := errors.AsType[*client.RefusedQueryError](err)
	switch {
	case err == nil && p.json():
		return p.printJSON(body)
	case err == nil:
		return show(found, body)
	case isRefused && refused.Status == http.StatusBadRequest:
		return misused("%s", flagFor(refused.Detail()))
	case isRefused && refused.Status == http.StatusNotFound:
		return errors.New(refused.Detail())
	case errors.Is(err, client.ErrNoWorker):
		return fmt.Errorf("%w: is a worker running in namespace %s?", err, p.Namespace)
	}
	return err
}
