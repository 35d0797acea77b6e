package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// healthcheckCommand is `worker healthcheck`.
type healthcheckCommand struct {
	HTTPAddr  string        `name:"http-addr" env:"HOLDFAST_HTTP_ADDR" placeholder:"ADDR" help:"The worker's operations address. Without it the one that --data-dir knows, else 127.0.0.1:8080."`
	Timeout   time.Duration `default:"3s" help:"How long to wait for an answer."`
	Directory `embed:""`
}

func (*healthcheckCommand) Help() string {
	return `It asks /healthz of a running worker, for a container or a service manager. Exit codes: 0 when the
process lives, 1 when it does not answer so, 2 wrong usage. Whether the worker also works, and why
not, is in /readyz: that is no reason to start it again.

Example:

  worker healthcheck
  worker healthcheck --http-addr 127.0.0.1:8080 --timeout 1s`
}

// Run asks the worker.
func (h *healthcheckCommand) Run(ctx context.Context, std streams) error {
	if h.Timeout <= 0 {
		return misused("--timeout %s must be more than 0s", h.Timeout)
	}
	addr, err := workerAddr(h.HTTPAddr, h.DataDir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/healthz", nil)
	if err != nil {
		return misused("--http-addr %s is not host:port", addr)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("no worker answers: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // only the status counts
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", request.URL, response.Status)
	}
	fmt.Fprintf(std.out, "alive: http://%s\n", addr)
	return nil
}

// workerAddr is where a worker is asked: given, else as endpoints.env in dir says, else the default. An address that
// means all of this machine, on which a worker may listen, is asked on loopback.
func workerAddr(given, dir string) (string, error) {
	found, err := endpointsIn(dir)
	if given == "" && err != nil {
		return "", err
	}
	addr := cmp.Or(given, found["HOLDFAST_HTTP_ADDR"], httpAddrDefault)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", misused("--http-addr %s is not host:port", addr)
	}
	switch ip, err := netip.ParseAddr(host); {
	case host == "", err == nil && ip.Is4() && ip.IsUnspecified():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}
