package stacktest

import (
	"net"
	"sync/atomic"
	"time"
)

// StallingDialer dials connections that stop reading once for the time Pause, in the middle of a
// message. It is a nats.CustomDialer.
type StallingDialer struct {
	Pause time.Duration
	left  atomic.Int64 // bytes until the pause; 0 means no pause
}

// PauseAfter sets the number of bytes until the next pause.
func (l *StallingDialer) PauseAfter(bytes int64) { l.left.Store(bytes) }

// Dial implements nats.CustomDialer.
func (l *StallingDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return stallingConn{conn, l}, nil
}

type stallingConn struct {
	net.Conn
	*StallingDialer
}

func (c stallingConn) Read(p []byte) (int, error) {
	left := c.left.Load()
	if left <= 0 {
		return c.Conn.Read(p)
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	if c.left.Add(-int64(n)) == 0 {
		time.Sleep(c.Pause)
	}
	return n, err
}
