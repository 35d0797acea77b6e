package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"holdfast/internal/events"
	"holdfast/internal/preflight"
)

// devCommand is `worker dev`.
type devCommand struct {
	Config  `embed:""`
	Once    bool   `help:"End after the story: 0 when all of it went as told, else 1."`
	DataDir string `default:".holdfast" type:"path" placeholder:"DIR" help:"Where endpoints.env is written. The servers themselves keep nothing."`
}

func (*devCommand) Help() string {
	return `It starts a real NATS, Redis and Postgres on free ports of this machine (unless you give their
URLs), with --lock-strategy redlock three more Redis for the locks, runs a worker on them, plays
a short story and stays up until Ctrl-C.

Example:

  worker dev --once`
}

// Run starts everything, plays the story and, unless it is to end then, stays up until ctx is over.
func (d *devCommand) Run(ctx context.Context, std streams) (err error) {
	config := d.Config
	if config.LogLevel == "info" {
		config.LogLevel = "error" // the story tells what happens
	}
	log, err := newLogger(std.err, config.LogLevel)
	if err != nil {
		return err
	}
	fmt.Fprint(std.out, "Holdfast keeps rooms, seats and stock for customers while they pay, and takes them back if they do not.\n\n")

	given := 0
	for _, url := range []string{config.NATSURL, config.RedisURL, config.PostgresURL} {
		if url != "" {
			given++
		}
	}
	if given > 0 && given < 3 {
		// What is in the servers that are given belongs to others that are not here any more.
		config.Namespace = "dev_" + uuid.NewString()[:8]
		fmt.Fprintf(std.out, "Some servers are yours and some are new, so everything goes into a namespace of its own, %s.\n\n", config.Namespace)
	}
	began := time.Now()
	started, err := startServers(ctx, &config, "", func(line string) { fmt.Fprintln(std.out, "  "+line) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, started.close()) }()
	listener, err := listenNear(config.HTTPAddr)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // the server has closed it already
	config.HTTPAddr = listener.Addr().String()
	endpoints, err := config.writeEndpoints(started, d.DataDir)
	if err != nil {
		return err
	}
	worker, err := start(ctx, config, listener, log, preparation{migrate: true, skip: slices.Concat(preflight.Durability, preflight.Privileges)})
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "Running after %.1f s, all of it real:\n", time.Since(began).Seconds())
	tell := func(name, url string, isNew bool) {
		whose := "yours"
		if isNew {
			whose = "started for you, keeps nothing"
		}
		fmt.Fprintf(std.out, "  %-9s %-60s %s\n", name, events.RedactedURL(url), whose)
	}
	tell("NATS", config.NATSURL, started.main.NATSURL != "")
	tell("Redis", config.RedisURL, started.main.RedisURL != "")
	tell("Postgres", config.PostgresURL, started.main.PostgresURL != "")
	for _, url := range config.LockRedisURLs {
		tell("locks", url, len(started.locks) > 0)
	}
	fmt.Fprintf(std.out, "  %-9s http://%s\n", "worker", config.HTTPAddr)
	fmt.Fprint(std.out, "Not checked here: what outlives a crash, and who may do what. For that there is `worker preflight`, which refuses servers that keep nothing.\n\n")

	err = playStory(ctx, config, std.out)
	if ctx.Err() != nil {
		return worker.stop()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the story went wrong: %w", err), worker.stop())
	}
	if d.Once {
		return worker.stop()
	}
	fmt.Fprint(std.out, nextCommands(endpoints, config))
	return worker.wait(ctx, started)
}

// listenNear listens on addr, or, when that is taken, on a free port of the same host.
func listenNear(addr string) (net.Listener, error) {
	listener, err := net.Listen("tcp", addr)
	if err == nil {
		return listener, nil
	}
	host, _, splitErr := net.SplitHostPort(addr)
	if splitErr != nil {
		return nil, misused("--http-addr: %v", splitErr)
	}
	listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("--http-addr: %w", err)
	}
	return listener, nil
}

func nextCommands(endpoints string, c Config) string {
	tomorrow := time.Now().UTC().AddDate(0, 0, 1)
	night := func(days int) string { return tomorrow.AddDate(0, 0, days).Format(time.DateOnly) }
	return fmt.Sprintf(`
Next, in another terminal in this directory (the addresses are in %s):

  go run ./cmd/publisher watch
  go run ./cmd/publisher inventory set --resource-id loft --check-in %s --check-out %s --capacity 1 --wait
  go run ./cmd/publisher request --resource-id loft --user-id you --check-in %s --check-out %s --ttl 30s --wait
  go run ./cmd/publisher pay --hold-id HOLD_ID --payment-id p-1 --wait
  go run ./cmd/worker locks
  go run ./cmd/worker audit
  curl 'http://%s/v1/availability?resource_id=loft&check_in=%s&check_out=%s'

Ctrl-C stops it.
`, relative(endpoints), night(0), night(7), night(1), night(4), c.HTTPAddr, night(0), night(7))
}

// relative shortens a path that lies below the working directory.
func relative(path string) string {
	working, err := filepath.Abs(".")
	if err != nil {
		return path
	}
	short, err := filepath.Rel(working, path)
	if err != nil || !filepath.IsLocal(short) {
		return path
	}
	return short
}
