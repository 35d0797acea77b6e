package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// startPostgres starts postgres with its data in the directory postgres of h,
// which it makes when there is none, and returns it with its URL. As root it
// runs as another user. One that is not durable never syncs. more settings win over the usual ones.
func startPostgres(ctx context.Context, h *home, bin postgresBin, progress func(string), more ...string) (*child, string, error) {
	data := filepath.Join(h.path, "postgres")
	owner, err := postgresAccount(data)
	if err != nil {
		return nil, "", err
	}
	if err := owner.checkAccess(h.path); err != nil {
		return nil, "", err
	}
	lock, err := h.lockFor(ctx, "postgres")
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = lock.Close() }() // the child holds its own copy
	if _, err := os.Stat(data); errors.Is(err, os.ErrNotExist) {
		if err := bin.makeData(ctx, data, owner, h.durable, progress); err != nil {
			return nil, "", err
		}
	} else if err != nil {
		return nil, "", fmt.Errorf("data directory: %w", err)
	}
	// We hold the lock, so no postgres of ours lives here, but one that was
	// killed may have left its pid, and in a container that pid is soon
	// another process'. Postgres would then refuse to start.
	if err := os.Remove(filepath.Join(data, "postmaster.pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, "", fmt.Errorf("remove stale pid file: %w", err)
	}
	make := func(port int) command {
		return command{
			name: "postgres", path: bin.postgres, args: postgresArgs(data, h.durable, port, more...), lock: lock, user: owner,
			stop:  syscall.SIGINT,  // "fast": ends sessions, writes a checkpoint
			death: syscall.SIGQUIT, // "immediate": at once, its own children too
		}
	}
	probe := func(ctx context.Context, _ *child, port int) error { return probePostgres(ctx, data, port) }
	c, port, err := onFreePort(ctx, make, probe)
	if err != nil {
		return nil, "", err
	}
	return c, postgresURL(port), nil
}

func postgresURL(port int) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
}

func postgresArgs(data string, durable bool, port int, more ...string) []string {
	args := []string{"-D", data, "-p", strconv.Itoa(port)}
	settings := []string{
		"listen_addresses=127.0.0.1",
		"unix_socket_directories=",
		"max_connections=500",
		"huge_pages=off",
		"logging_collector=off", // to standard error, which we read
		"log_destination=stderr",
		"timezone=UTC",
		"log_timezone=UTC",
		"cluster_name=holdfast",
	}
	if !durable {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	}
	for _, s := range append(settings, more...) {
		args = append(args, "-c", s)
	}
	return args
}

// probePostgres asks whether the server on the port answers queries and is the
// one that owns data, and not a stranger's that took the port first.
func probePostgres(ctx context.Context, data string, port int) (err error) {
	conn, err := pgx.Connect(ctx, postgresURL(port))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var owns string
	if err := conn.QueryRow(ctx, "select current_setting('data_directory')").Scan(&owns); err != nil {
		return err
	}
	if owns != data {
		return fmt.Errorf("the port belongs to another postgres, with its data in %s", owns)
	}
	return nil
}
