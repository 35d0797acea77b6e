package stacktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	chunkMax   = 32 << 10               // bytes that are read at once
	sliceEvery = 200 * time.Microsecond // between two slices
	dropDrain  = 2 * time.Second        // for which a server may still answer what nobody hears
	dialServer = 2 * time.Second
)

// Direction is one of the two directions of a connection.
type Direction int

// The two ways.
const (
	Upstream   Direction = iota // from the client to the server
	Downstream                  // from the server to the client
)

// Toxics is what happens to bytes on one way. The zero Path forwards them as they come.
type Toxics struct {
	Stall bool          // nothing passes; what comes waits
	Delay time.Duration // before each piece that was read
	Slice int           // most bytes that are written at once, 0 = no limit
}

// DropRule is what is lost of a connection: what a client says that contains one of the words, or the
// answer to it. Then the connection is cut.
type DropRule struct {
	Words   []string // in what the client sends, in upper or lower case
	Skip    int      // so many that match pass unharmed
	Request bool     // the request is lost, and not the reply: then nothing was done
}

// Proxy is a TCP proxy before one server. It knows bytes, and no protocol. Its methods may be
// called at any time, and concern connections that there are as well as those to come.
type Proxy struct {
	listener net.Listener
	closed   context.Context
	close    context.CancelFunc
	all      sync.WaitGroup

	mu      sync.Mutex
	target  string
	refuse  bool
	toxics  [2]Toxics
	rules   []*armedRule
	dropped int
	links   map[*link]struct{}
	changed chan struct{} // closed and replaced when paths change
}

// armedRule is a Loss that waits for its request.
type armedRule struct {
	DropRule
	words [][]byte
}

// link is one connection through a proxy.
type link struct {
	client, server net.Conn
	once           sync.Once
	muted          bool // guarded by Proxy.mu: the client hears nothing any more
}

// NewProxy listens on a free port of 127.0.0.1 and forwards to a target.
func NewProxy(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{listener: listener, target: target, links: make(map[*link]struct{}), changed: make(chan struct{})}
	p.closed, p.close = context.WithCancel(context.Background())
	p.all.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close ends the proxy and all its connections.
func (p *Proxy) Close() error {
	p.close()
	err := p.listener.Close()
	p.Cut(true)
	p.all.Wait()
	return err
}

// Target forwards new connections to another address: the server has been started elsewhere.
func (p *Proxy) Target(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = address
}

// Refuse has new connections reset, or forwards them again.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Set changes what happens on one way.
func (p *Proxy) Set(w Direction, path Toxics) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toxics[w] = path
	close(p.changed)
	p.changed = make(chan struct{})
}

// Drop loses the next request that matches, or the reply to it, once.
func (p *Proxy) Drop(l DropRule) {
	armed := &armedRule{DropRule: l}
	for _, word := range l.Words {
		armed.words = append(armed.words, []byte(strings.ToLower(word)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, armed)
}

// Dropped is how many requests or replies were lost so far.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Reset ends all that Refuse, Set and Lose have begun.
func (p *Proxy) Reset() {
	p.Refuse(false)
	p.Set(Upstream, Toxics{})
	p.Set(Downstream, Toxics{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// Cut ends all connections, by a reset, or else as if both sides had said goodbye.
func (p *Proxy) Cut(reset bool) {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.cut(reset)
	}
}

func (l *link) cut(reset bool) {
	l.once.Do(func() {
		for _, c := range []net.Conn{l.client, l.server} {
			hangUp(c, reset)
		}
	})
}

// hangUp closes a connection; a reset loses what was not sent yet.
func hangUp(c net.Conn, reset bool) {
	if tcp, ok := c.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0) // it may be gone already
	}
	_ = c.Close() // likewise
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // one that has gone before it was accepted
		}
		p.mu.Lock()
		refuse, target := p.refuse, p.target
		p.mu.Unlock()
		if refuse {
			hangUp(client, true)
			continue
		}
		p.all.Go(func() { p.serve(client, target) })
	}
}

func (p *Proxy) serve(client net.Conn, target string) {
	dialer := net.Dialer{Timeout: dialServer}
	server, err := dialer.DialContext(p.closed, "tcp4", target)
	if err != nil {
		hangUp(client, true)
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.links[l] = struct{}{}
	closing := p.closed.Err() != nil
	p.mu.Unlock()
	if closing {
		l.cut(true)
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(l, Upstream, client, server) })
	both.Go(func() { p.pump(l, Downstream, server, client) })
	both.Wait()
	l.cut(false)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// pump forwards one way until it ends. An end is forwarded as well: the other way may go on.
func (p *Proxy) pump(l *link, w Direction, from, to net.Conn) {
	buffer := make([]byte, chunkMax)
	var tail []byte // the end of what was read before: a word may begin there
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			chunk := buffer[:n]
			path, alive := p.awaitToxics(w)
			if !alive {
				return
			}
			if path.Delay > 0 && !p.sleep(path.Delay) {
				return
			}
			var hit *armedRule
			if w == Upstream {
				hit, tail = p.match(tail, chunk)
			}
			switch {
			case hit != nil && hit.Request:
				l.cut(true)
				return
			case hit != nil:
				p.mute(l)
			case w == Downstream && p.isMuted(l):
				continue // done, and nobody hears of it
			}
			if err := p.write(to, chunk, path.Slice); err != nil {
				l.cut(true)
				return
			}
			if hit != nil {
				// The server has it. It may still answer for a while; the client is cut off now.
				hangUp(l.client, true)
				p.sleep(dropDrain)
				l.cut(false)
				return
			}
		}
		if err != nil {
			switch {
			case w == Downstream && p.isMuted(l):
			case isReset(err):
				l.cut(true)
			default:
				if tcp, ok := to.(*net.TCPConn); ok {
					_ = tcp.CloseWrite() // it may be gone already
				}
			}
			return
		}
	}
}

// isReset reports whether a connection has ended otherwise than by a goodbye.
func isReset(err error) bool { return errors.As(err, new(*net.OpError)) }

// awaitToxics waits while a way is stalled, and returns its Path; alive is false when the proxy ends.
func (p *Proxy) awaitToxics(w Direction) (path Toxics, alive bool) {
	for {
		p.mu.Lock()
		path, changed := p.toxics[w], p.changed
		p.mu.Unlock()
		if !path.Stall {
			return path, p.closed.Err() == nil
		}
		select {
		case <-changed:
		case <-p.closed.Done():
			return path, false
		}
	}
}

func (p *Proxy) sleep(d time.Duration) (alive bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.closed.Done():
		return false
	}
}

// write writes a chunk, in pieces of at most slice bytes.
func (p *Proxy) write(to net.Conn, chunk []byte, slice int) error {
	if slice <= 0 {
		slice = len(chunk)
	}
	for len(chunk) > 0 {
		n := min(slice, len(chunk))
		if _, err := to.Write(chunk[:n]); err != nil {
			return err
		}
		if chunk = chunk[n:]; len(chunk) > 0 && !p.sleep(sliceEvery) {
			return net.ErrClosed
		}
	}
	return nil
}

// match returns the loss that a chunk meets, if any, and what to remember of the chunk.
func (p *Proxy) match(tail, chunk []byte) (hit *armedRule, end []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.rules) == 0 {
		return nil, nil
	}
	text := bytes.ToLower(append(tail, chunk...))
	most := 0
	for i := 0; i < len(p.rules); i++ {
		l := p.rules[i]
		for _, word := range l.words {
			most = max(most, len(word))
			at := bytes.Index(text, word)
			if at < 0 || at+len(word) <= len(tail) {
				continue // what is in the tail was seen before
			}
			if l.Skip--; l.Skip >= 0 {
				break
			}
			p.rules = append(p.rules[:i], p.rules[i+1:]...)
			p.dropped++
			return l, nil
		}
	}
	return nil, bytes.Clone(text[max(0, len(text)-most+1):])
}

func (p *Proxy) mute(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.muted = true
}

func (p *Proxy) isMuted(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return l.muted
}
