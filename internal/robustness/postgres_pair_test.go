package robustness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// postgresServer is one Postgres. Its standby connects over the link, because the port changes with each
// start.
type postgresServer struct {
	*serverProcess
	dir string
}

// addPostgres adds a Postgres. The first one is the writer, others are standbys of the writer.
func (s *Servers) addPostgres(name string) error {
	p := &postgresServer{dir: filepath.Join(s.dir, name)}
	p.serverProcess = &serverProcess{name: name, start: func(ctx context.Context) (*stack.Server, error) {
		settings := []string{fmt.Sprintf("max_connections=%d", postgresConnections), "wal_retrieve_retry_interval=100ms"}
		if p == s.writer() {
			return stack.StartPostgresServer(ctx, p.dir, settings...)
		}
		port, err := strconv.Atoi(s.writer().link.Port())
		if err != nil {
			return nil, err
		}
		return stacktest.StartPostgresStandby(ctx, p.dir, port, settings...)
	}}
	s.postgres = append(s.postgres, p)
	s.writing.Store(s.postgres[0])
	return nil
}

// addPostgresPair adds a Postgres and its standby.
func (s *Servers) addPostgresPair() error {
	errs := []error{s.addPostgres("postgres-1"), s.addPostgres("postgres-2")}
	for _, p := range s.postgres {
		link, err := stacktest.NewProxy(stack.Loopback(1)) // until the server runs
		p.link, errs = link, append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Servers) isStandby(server *serverProcess) bool {
	standby := s.standby()
	return standby != nil && standby.serverProcess == server
}

// writer returns the server that is no standby.
func (s *Servers) writer() *postgresServer { return s.writing.Load() }

// standby returns the standby of the writer, nil without one.
func (s *Servers) standby() *postgresServer {
	for _, p := range s.postgres {
		if p != s.writer() {
			return p
		}
	}
	return nil
}

// startStandby starts the standby, on a copy of the writer unless it has data, and returns when commits
// wait for it.
func (s *Servers) startStandby(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	// Before the standby exists: workers refuse to start with standbys of which none is synchronous.
	if err := s.writer().setSynchronous(ctx, "*"); err != nil {
		return err
	}
	if err := s.standby().up(ctx); err != nil {
		return err
	}
	return s.withPostgres(ctx, func(ctx context.Context, c *pgx.Conn) error {
		const query = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'"
		for synchronous := 0; ; wait(ctx, pollInterval) {
			if err := c.QueryRow(ctx, query).Scan(&synchronous); err != nil || synchronous > 0 {
				return err
			}
		}
	})
}

// setSynchronous sets which standbys each commit waits for: "*" means any, "" none.
func (p *postgresServer) setSynchronous(ctx context.Context, names string) error {
	return p.alterSystem(ctx, fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = '%s'", names))
}

// alterSystem changes a setting of a running server.
func (p *postgresServer) alterSystem(ctx context.Context, statement string) error {
	return p.with(ctx, func(ctx context.Context, c *pgx.Conn) error {
		for _, one := range []string{statement, "SELECT pg_reload_conf()"} {
			if _, err := c.Exec(ctx, one); err != nil {
				return fmt.Errorf("%s: %w", one, err)
			}
		}
		return nil
	})
}

// with calls do with a connection to the server without a proxy.
func (p *postgresServer) with(ctx context.Context, do func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	conn, err := pgx.Connect(ctx, postgresURL(p.addr()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", p.name, err)
	}
	return errors.Join(do(ctx, conn), conn.Close(ctx))
}

// promote ends the writer, makes the standby the writer and the former one its standby, with a copy of the
// new data.
func (s *Servers) promote(ctx context.Context) error {
	former, next := s.writer(), s.standby()
	if err := errors.Join(former.kill(), next.setSynchronous(ctx, "")); err != nil {
		return err
	}
	if err := next.with(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SELECT pg_promote()") // it waits until the server takes writes
		return err
	}); err != nil {
		return err
	}
	s.writing.Store(next)
	return os.RemoveAll(filepath.Join(former.dir, "postgres"))
}
