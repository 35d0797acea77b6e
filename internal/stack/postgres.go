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

// startPostgres starts postgres with its data in the directory postgres of h, which it creates if need
// be, and returns it. If this process is root, postgres runs as another user. A postgres
// that is not durable never syncs. more has settings that override the usual ones.
func startPostgres(ctx context.Context, h *home, bin postgresBin, more ...string) (*Server, error) {
	data := filepath.Join(h.path, "postgres")
	owner, err := postgresAccount(data)
	if err != nil {
		return nil, err
	}
	if err := owner.checkAccess(h.path); err != nil {
		return nil, err
	}
	lock, err := h.lockFor(ctx, "postgres")
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }() // the child holds its own copy
	if _, err := os.Stat(data); errors.Is(err, os.ErrNotExist) {
		if err := bin.makeData(ctx, data, owner, lock, h.durable); err != nil {
			return nil, fmt.Errorf("create data directory: %w", err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	// This process has the lock, so no postgres runs on the data. A killed postgres may have left its
	// pid file. In a container another process soon has that pid, and postgres would refuse to start.
	if err := os.Remove(filepath.Join(data, "postmaster.pid")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale pid file: %w", err)
	}
	make := func(port int) command {
		return command{
			name: "postgres", path: bin.postgres, args: postgresArgs(data, h.durable, port, more...), lock: lock, user: owner,
			waiting: h.waiting,
			stop:    syscall.SIGINT,  // fast shutdown: ends sessions, writes a checkpoint
			death:   syscall.SIGQUIT, // immediate shutdown, including its child processes
		}
	}
	return onFreePort(ctx, make, func(ctx context.Context, s *Server) error { return probePostgres(ctx, data, s.Port) })
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
		"logging_collector=off", // log to standard error, which this process reads
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

// probePostgres returns an error unless the server on the port answers queries and has the data
// directory data. A foreign postgres may have taken the port first.
func probePostgres(ctx context.Context, data string, port int) (err error) {
	conn, err := pgx.Connect(ctx, postgresURL(port))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var found string
	if err := conn.QueryRow(ctx, "select current_setting('data_directory')").Scan(&found); err != nil {
		return err
	}
	if found != data {
		return fmt.Errorf("another postgres has the port, with its data in %s", found)
	}
	return nil
}
