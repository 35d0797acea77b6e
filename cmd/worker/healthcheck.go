package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"holdfast/internal/stack/endpoints"
)

// healthcheckCommand is `worker healthcheck`.
type healthcheckCommand struct {
	HTTPAddr  string        `name:"http-addr" env:"HOLDFAST_HTTP_ADDR" placeholder:"ADDR" help:"Operations address of the worker. Default: from endpoints.env in --data-dir, else 127.0.0.1:8080."`
	Timeout   time.Duration `default:"3s" help:"Maximum time to wait for the answer."`
	Directory `embed:""`
}

func (*healthcheckCommand) Help() string {
	return `It requests /healthz from a running worker. Use it as the health check of a container or service
manager. /readyz reports whether the worker also processes events: do not restart a worker because it
is not ready.

Exit codes: 0 the process is alive, 1 it does not answer, 2 wrong usage.

Examples:

  worker healthcheck
  worker healthcheck --http-addr 127.0.0.1:8080 --timeout 1s`
}

// Run requests /healthz and returns an error unless the answer is 200.
func (h *healthcheckCommand) Run(ctx context.Context, std streams) error {
	if h.Timeout <= 0 {
		return misused("--timeout %s must be more than 0s", h.Timeout)
	}
	addr, err := workerAddr(h.HTTPAddr, h.DataDir)
	if err != nil {
		return err
	}
	if _, _, err := requestWorker(ctx, h.Timeout, addr, "/healthz", "", 0); err != nil { // only the status matters
		return err
	}
	// The result is the exit code: a full disk is no reason to restart a worker.
	fmt.Fprintf(std.out.(*output).Unwrap(), "alive: http://%s\n", addr)
	return nil
}

// workerAddr returns the address at which to reach a worker: given, else the one in endpoints.env
// in dir, else the default.
func workerAddr(given, dir string) (string, error) {
	found, err := endpoints.ReadIn(dir)
	if given == "" && err != nil {
		return "", err
	}
	return reachable("--http-addr", cmp.Or(given, found["HOLDFAST_HTTP_ADDR"], httpAddrDefault))
}

// reachable returns the address at which to reach a worker that listens on the address of a setting. It replaces an
// unspecified host such as 0.0.0.0 by loopback.
func reachable(setting, addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", misused("%s %s is not host:port", setting, addr)
	}
	switch ip, err := netip.ParseAddr(host); {
	case host == "", err == nil && ip.Is4() && ip.IsUnspecified():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}
