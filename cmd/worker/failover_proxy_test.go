package main

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// failoverProxy is an address that leads to one server and then to another, as a failover does.
type failoverProxy struct {
	listener net.Listener

	mu    sync.Mutex
	to    string
	conns map[net.Conn]struct{}
}

// newFailoverProxy returns one that leads to the server of a Redis URL, and its own URL.
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
		_ = listener.Close() // nobody is left
		s.cut()
		running.Wait()
	})
	return s, "redis://" + listener.Addr().String() + "/0"
}

// switchTo leads whoever connects from now on to another server, and cuts the connections that there are.
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
		_ = conn.Close() // whatever was on its way is lost
	}
	clear(s.conns)
}

func (s *failoverProxy) connect(near net.Conn) {
	s.mu.Lock()
	far, err := net.Dial("tcp", s.to)
	if err != nil {
		s.mu.Unlock()
		_ = near.Close() // it learns that way
		return
	}
	s.conns[near], s.conns[far] = struct{}{}, struct{}{}
	s.mu.Unlock()
	var both sync.WaitGroup
	for _, direction := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(direction[0], direction[1]) // until one side is closed
			_, _ = direction[0].Close(), direction[1].Close()
		})
	}
	both.Wait()
	s.mu.Lock()
	delete(s.conns, near)
	delete(s.conns, far)
	s.mu.Unlock()
}
