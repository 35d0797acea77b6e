package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// silenceMax is how long a server may send nothing before it has answered: the sums over all reservations of a large
// table take a minute. Without a limit a query whose connection loses all bytes waits until TCP gives up, or without end
// when a proxy holds the connection.
const silenceMax = 2 * time.Minute

// ErrSilent is the error of a connection whose server has sent nothing for too long.
var ErrSilent = errors.New("postgres has not answered")

// EndSilent returns an option: a connection ends with ErrSilent when its server sends nothing for a time before it has
// answered. Config sets silenceMax.
func EndSilent(after time.Duration) Option {
	return func(config *pgxpool.Config) {
		dial := config.ConnConfig.DialFunc
		config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &limitedConn{Conn: conn, silenceMax: after}, nil
		}
	}
}

// limitedConn is a connection on which each read has a limit.
type limitedConn struct {
	net.Conn
	silenceMax time.Duration
	silent     atomic.Bool
}

// Unlimited returns a connection that a DialFunc of Config has opened, without the limit.
func Unlimited(conn net.Conn) net.Conn {
	if limited, is := conn.(*limitedConn); is {
		return limited.Conn
	}
	return conn
}

func (c *limitedConn) Read(b []byte) (int, error) {
	limit := time.AfterFunc(c.silenceMax, func() {
		c.silent.Store(true)
		_ = c.SetReadDeadline(time.Unix(1, 0)) // the driver closes the connection; it may read once more before
	})
	defer limit.Stop()
	n, err := c.Conn.Read(b)
	if err != nil && c.silent.Load() {
		err = fmt.Errorf("%w for %s: %w", ErrSilent, c.silenceMax, err)
	}
	return n, err
}
