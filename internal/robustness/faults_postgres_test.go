package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	postgresProcess = "postgres process"
	postgresTables  = "postgres tables"
)

var postgresFaults = []Fault{
	{
		Kind: "postgres killed", What: "immediate shutdown of Postgres, then recovery",
		Claims: []string{postgresProcess, postgresTables},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			writer := s.writer()
			return writer.up, writer.kill()
		},
	},
	{
		Kind: "postgres paused", What: "SIGSTOP of all processes of Postgres",
		Claims: []string{postgresProcess, postgresTables}, Lasts: span{3 * time.Second, 20 * time.Second},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			writer := s.writer()
			return undoWith(writer.resume), writer.pause()
		},
	},
	{
		Kind: "standby killed", What: "kill -9 of the standby: no transaction commits until it is back",
		Claims: []string{postgresProcess, postgresTables}, Layouts: []string{cluster},
		Strike: func(_ context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			return s.startStandby, s.standby().kill()
		},
	},
	{
		Kind: "postgres failed over", What: "immediate shutdown of Postgres; its synchronous standby is promoted",
		Claims: []string{postgresProcess, postgresTables}, Layouts: []string{cluster},
		Strike: func(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			return s.startStandby, s.promote(ctx)
		},
	},
	{
		Kind: "postgres rewound", What: "an asynchronous standby that was cut off is promoted: the last commits are lost",
		Claims:  []string{postgresProcess, postgresTables, heldByWorker, heldByNetwork, heldByNATS},
		Layouts: []string{cluster}, Lasts: span{time.Second, 3 * time.Second},
		Strike: func(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
			err := errors.Join(s.writer().setSynchronous(ctx, ""),
				s.standby().alterSystem(ctx, "ALTER SYSTEM SET primary_conninfo = ''"))
			return func(ctx context.Context) error {
				return errors.Join(s.promote(ctx), s.startStandby(ctx))
			}, err
		},
	},
	{
		Kind:   "postgres connections exhausted",
		What:   "the workers' sessions are ended, and all of max_connections are taken",
		Claims: []string{postgresProcess, postgresTables},
		Strike: exhaustConnections,
	},
	{
		Kind: "postgres sessions ended", What: "pg_terminate_backend of all sessions of the workers, several times",
		Claims: []string{postgresProcess},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			return noUndo, s.withPostgres(ctx, func(ctx context.Context, c *pgx.Conn) error {
				for range 4 {
					if err := terminateOthers(ctx, c); err != nil {
						return err
					}
					wait(ctx, time.Duration(random.IntN(300))*time.Millisecond)
				}
				return nil
			})
		},
	},
	{
		Kind:   "serialization failures",
		What:   "half of all changes of inventory and payments fail with 40001 or 40P01",
		Claims: []string{postgresProcess, postgresTables},
		Strike: failStatements("CASE WHEN random() < 0.5 THEN '40001' ELSE '40P01' END"),
	},
	{
		Kind:   "disk full (simulated)",
		What:   "half of all changes of inventory and payments fail with 53100 (disk full); the disk itself is not filled",
		Claims: []string{postgresProcess, postgresTables},
		Strike: failStatements("'53100'"),
	},
	{
		Kind: "inventory locked", What: "another transaction locks the inventory table",
		Claims: []string{postgresProcess, postgresTables},
		Strike: lockInventory,
	},
	{
		Kind: "capacity by SQL", What: "plain SQL changes capacities, many times",
		Claims: []string{postgresProcess, postgresTables},
		Strike: func(ctx context.Context, s *Cluster, random *rand.Rand) (undoFunc, error) {
			s.capacityBySQL = true
			return noUndo, s.withPostgres(ctx, func(ctx context.Context, c *pgx.Conn) error {
				// It only lowers capacities: the audit compares with the highest capacity that an event has set.
				lower := fmt.Sprintf(`UPDATE %s.inventory SET capacity = greatest(reserved, capacity - 1)
					WHERE resource_id = $1`, s.Namespace)
				for range 30 {
					if _, err := c.Exec(ctx, lower, fmt.Sprintf("hotel-%d", random.IntN(4))); err != nil {
						return err
					}
					wait(ctx, 20*time.Millisecond)
				}
				return nil
			})
		},
	},
}

// terminateOthers ends all other client sessions.
func terminateOthers(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	return err
}

// terminateWorkers ends the sessions of the workers.
func terminateWorkers(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast%'")
	return err
}

// exhaustConnections takes every connection that Postgres allows.
func exhaustConnections(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
	var taken []*pgx.Conn
	release := func(ctx context.Context) error {
		var errs []error
		for _, c := range taken {
			errs = append(errs, c.Close(ctx))
		}
		return errors.Join(errs...)
	}
	first, err := pgx.Connect(ctx, s.writerURL())
	if err != nil {
		return noUndo, err
	}
	taken = append(taken, first)
	for range 3 { // a worker may reconnect before this loop takes its connection
		if err := terminateWorkers(ctx, first); err != nil {
			return release, err
		}
		for len(taken) < postgresConnections {
			c, err := pgx.Connect(ctx, s.writerURL())
			if err != nil {
				break
			}
			taken = append(taken, c)
		}
	}
	s.Log("%d connections of postgres taken", len(taken))
	return release, nil
}

// failStatements installs a trigger that fails every second change on average. code is a SQL
// expression for the SQLSTATE.
func failStatements(code string) strikeFunc {
	return func(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
		create := fmt.Sprintf(`CREATE OR REPLACE FUNCTION %[1]s.robustness() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
				IF random() < 0.5 THEN RAISE EXCEPTION 'robustness' USING ERRCODE = %[2]s; END IF;
				RETURN NEW;
			END $$;
			CREATE TRIGGER robustness BEFORE INSERT OR UPDATE ON %[1]s.inventory
				FOR EACH ROW EXECUTE FUNCTION %[1]s.robustness();
			CREATE TRIGGER robustness BEFORE INSERT ON %[1]s.payments
				FOR EACH ROW EXECUTE FUNCTION %[1]s.robustness();`, s.Namespace, code)
		drop := fmt.Sprintf("DROP FUNCTION %s.robustness CASCADE", s.Namespace)
		exec := func(ctx context.Context, statements string) error {
			return s.withPostgres(ctx, func(ctx context.Context, c *pgx.Conn) error {
				_, err := c.Exec(ctx, statements)
				return err
			})
		}
		return func(ctx context.Context) error { return exec(ctx, drop) }, exec(ctx, create)
	}
}

func lockInventory(ctx context.Context, s *Cluster, _ *rand.Rand) (undoFunc, error) {
	conn, err := pgx.Connect(ctx, s.writerURL())
	if err != nil {
		return noUndo, err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("BEGIN; LOCK TABLE %s.inventory IN ACCESS EXCLUSIVE MODE", s.Namespace))
	return conn.Close, err
}
