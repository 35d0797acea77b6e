package main

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// failoverProxy is an address that leads to one server and, after switchTo, to another, as in a
// failover.
type failoverProxy struct {
	listener net.Listener

	mu    sync.Mutex
	to    string
	conns map[net.Conn]struct{}
}

// newFailoverProxy returns a proxy to the server of a Redis URL, and the URL of the proxy.
func newFailoverProxy(t *testing.T, redisURL string) (s *failoverProxy, ownURL string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = &failoverProxy{listener: listener, conns: make(map[net.Conn]struct{})}
	s.switchTo(t, redisURL)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { s.connect(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // no goroutine uses it any more
		s.cut()
		running.Wait()
	})
	return s, "redis://" + listener.Addr().String() + "/0"
}

// switchTo directs new connections to another server and cuts the existing ones.
func (s *failoverProxy) switchTo(t *testing.T, redisURL string) {
	t.Helper()
	parsed, err := url.Parse(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.to = parsed.Host
	s.mu.Unlock()
	s.cut()
}

func (s *failoverProxy) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close() // data in transit is lost
	}
	clear(s.conns)
}

func (s *failoverProxy) connect(near net.Conn) {
	s.mu.Lock()
	far, err := net.Dial("tcp", s.to)
	if err != nil {
		s.mu.Unlock()
		_ = near.Close() // the client sees the closed connection
		return
	}
	s.conns[near], s.conns[far] = struct{}{}, struct{}{}
	s.mu.Unlock()
	var both sync.WaitGroup
	for _, direction := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(direction[0], direction[1]) // ends when one side is closed
			_, _ = direction[0].Close(), direction[1].Close()
		})
	}
	both.Wait()
	s.mu.Lock()
	delete(s.conns, near)
	delete(s.conns, far)
	s.mu.Unlock()
}
