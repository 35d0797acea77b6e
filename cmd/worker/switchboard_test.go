package main

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// switchboard is an address that leads to one server and then to another, as a failover does.
type switchboard struct {
	listener net.Listener

	mu    sync.Mutex
	to    string
	conns map[net.Conn]struct{}
}

// newSwitchboard returns one that leads to the server of a Redis URL, and its own URL.
func newSwitchboard(t *testing.T, redisURL string) (s *switchboard, ownURL string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = &switchboard{listener: listener, conns: make(map[net.Conn]struct{})}
	s.lead(t, redisURL)
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

// lead leads whoever connects from now on to another server, and cuts the connections that there are.
func (s *switchboard) lead(t *testing.T, redisURL string) {
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

func (s *switchboard) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close() // whatever was on its way is lost
	}
	clear(s.conns)
}

func (s *switchboard) connect(near net.Conn) {
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
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // until one side is closed
			_, _ = way[0].Close(), way[1].Close()
		})
	}
	both.Wait()
	s.mu.Lock()
	delete(s.conns, near)
	delete(s.conns, far)
	s.mu.Unlock()
}
