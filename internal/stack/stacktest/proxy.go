package stacktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	chunkMax   = 32 << 10               // bytes read at once
	sliceEvery = 200 * time.Microsecond // between two slices
	dropDrain  = 2 * time.Second        // the server may still reply for this time after a drop
	dialServer = 2 * time.Second
)

// Direction is one of the two directions of a connection.
type Direction int

// The directions.
const (
	Upstream   Direction = iota // from the client to the server
	Downstream                  // from the server to the client
)

// Toxics change how a proxy forwards bytes in one direction. The zero value changes nothing.
type Toxics struct {
	Stall bool          // forward nothing; the bytes arrive when the stall ends
	Delay time.Duration // before each chunk
	Slice int           // maximum number of bytes written at once; 0 means no limit
}

// DropRule drops a request that contains one of the words, or the reply to it, and then cuts the
// connection.
type DropRule struct {
	Words   []string // matched in any case
	Skip    int      // matching requests that pass before the rule applies
	Request bool     // drop the request, so that the server never receives it; else drop the reply
}

// Proxy is a TCP proxy in front of one server. It forwards bytes and knows no protocol. Its methods
// are safe for concurrent use. Set, Drop and Reset apply to present and future connections.
//
// Shopify/toxiproxy (v2.12) cannot replace it: it discards the bytes of a stall, cannot relate a
// reply to its request, and cannot refuse new connections while it keeps the present ones.
type Proxy struct {
	listener net.Listener
	closed   context.Context
	close    context.CancelFunc
	all      sync.WaitGroup

	mu      sync.Mutex
	target  string
	refuse  bool
	toxics  [2]Toxics
	rules   []*DropRule // that have not applied yet
	dropped int
	rewrite [2][][2][]byte // by direction: pairs of the same length
	links   map[*link]struct{}
	changed chan struct{} // closed and replaced when toxics change
}

// link is one connection through a proxy.
type link struct {
	client, server net.Conn
	once           sync.Once
	muted          atomic.Bool // nothing more is forwarded to the client
	halfOpen       atomic.Bool // nothing more is forwarded, not even its end
}

// ProxyTo returns a proxy to the server of a URL, and the URL of the server behind it. The proxy is closed when the test
// ends.
func ProxyTo(t testing.TB, serverURL string) (proxyURL string, proxy *Proxy) {
	t.Helper()
	address, err := url.Parse(serverURL)
	Must(t, err)
	if proxy, err = NewProxy(address.Host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	address.Host = proxy.Addr()
	return address.String(), proxy
}

// NewProxy returns a proxy that listens on a free port of 127.0.0.1 and forwards to the address
// target. The caller calls Close.
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

// Addr returns the address on which the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Port returns the port on which the proxy listens.
func (p *Proxy) Port() string { return strconv.Itoa(p.listener.Addr().(*net.TCPAddr).Port) }

// Close stops the proxy and resets all its connections.
func (p *Proxy) Close() error {
	p.close()
	err := p.listener.Close()
	p.Cut(true)
	p.all.Wait()
	return err
}

// Target sets the address to which the proxy forwards new connections.
func (p *Proxy) Target(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = address
}

// Refuse makes the proxy reset new connections, or forward them again.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Set replaces the toxics of one direction.
func (p *Proxy) Set(d Direction, toxics Toxics) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toxics[d] = toxics
	close(p.changed)
	p.changed = make(chan struct{})
}

// Drop adds a rule, which applies once.
func (p *Proxy) Drop(rule DropRule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &rule)
}

// Rewrite replaces old by new, of the same length, in one direction, from now on and also after Reset.
// Bytes at the end of a chunk with which old may begin are forwarded with the next chunk.
func (p *Proxy) Rewrite(d Direction, old, new string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rewrite[d] = append(p.rewrite[d], [2][]byte{[]byte(old), []byte(new)})
}

// rewritten returns bytes of one direction with all replacements made, and those to keep for the next call.
func (p *Proxy) rewritten(d Direction, text []byte) (forward, keep []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := len(text)
	for _, pair := range p.rewrite[d] {
		text = bytes.ReplaceAll(text, pair[0], pair[1])
		for n := min(len(pair[0])-1, len(text)); n > 0; n-- {
			if bytes.HasPrefix(pair[0], text[len(text)-n:]) {
				end = min(end, len(text)-n)
				break
			}
		}
	}
	return text[:end], bytes.Clone(text[end:])
}

// Dropped returns how many rules have applied so far.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Reset ends the effects of Refuse, Set and Drop.
func (p *Proxy) Reset() {
	p.Refuse(false)
	p.Set(Upstream, Toxics{})
	p.Set(Downstream, Toxics{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// Cut closes all connections, by RST if reset, else by FIN.
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

// HalfOpen discards from now on what arrives on the present connections, which stay open, as after a failure of a
// network or of a firewall. It forwards new connections.
func (p *Proxy) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.halfOpen.Store(true)
	}
}

func (l *link) cut(reset bool) {
	l.once.Do(func() {
		for _, c := range []net.Conn{l.client, l.server} {
			hangUp(c, reset)
		}
	})
}

// hangUp closes a connection. A reset discards unsent bytes.
func hangUp(c net.Conn, reset bool) {
	if tcp, ok := c.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0) // fails only on a closed connection
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
			continue // the client has already closed it
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

// pump forwards one direction until it ends. It forwards FIN too, so that the other direction can
// continue.
func (p *Proxy) pump(l *link, d Direction, from, to net.Conn) {
	buffer := make([]byte, chunkMax)
	var tail []byte // the end of earlier chunks, where a word may begin
	var kept []byte // the end of earlier chunks, which is not forwarded yet
	for {
		n, err := l.read(from, buffer)
		if n > 0 {
			chunk := buffer[:n]
			toxics, alive := p.awaitToxics(d)
			if !alive {
				return
			}
			if toxics.Delay > 0 && !p.sleep(toxics.Delay) {
				return
			}
			var hit *DropRule
			if d == Upstream {
				hit, tail = p.match(tail, chunk)
			}
			switch {
			case hit != nil && hit.Request:
				l.cut(true)
				return
			case hit != nil:
				l.muted.Store(true)
			case d == Downstream && l.muted.Load():
				continue // this drops the reply
			}
			if len(kept) > 0 {
				chunk = append(kept, chunk...)
			}
			chunk, kept = p.rewritten(d, chunk)
			if err := p.write(to, chunk, toxics.Slice); err != nil {
				l.cut(true)
				return
			}
			if hit != nil {
				// The server has the request. It gets some time to reply; the client is cut off now.
				hangUp(l.client, true)
				p.sleep(dropDrain)
				l.cut(false)
				return
			}
		}
		if err != nil {
			switch {
			case l.halfOpen.Load(), d == Downstream && l.muted.Load():
			case isReset(err):
				l.cut(true)
			default:
				if tcp, ok := to.(*net.TCPConn); ok {
					_ = tcp.CloseWrite() // fails only on a closed connection
				}
			}
			return
		}
	}
}

// read reads from one side. While the connection is half open it discards what it reads, and returns its end only.
func (l *link) read(from net.Conn, buffer []byte) (n int, err error) {
	for {
		n, err = from.Read(buffer)
		if !l.halfOpen.Load() {
			return n, err
		}
		if err != nil {
			return 0, err
		}
	}
}

// isReset reports whether a connection has ended by anything but FIN.
func isReset(err error) bool { return errors.As(err, new(*net.OpError)) }

// awaitToxics waits until a direction is not stalled, and returns its toxics. alive is false when the
// proxy is closed.
func (p *Proxy) awaitToxics(d Direction) (toxics Toxics, alive bool) {
	for {
		p.mu.Lock()
		toxics, changed := p.toxics[d], p.changed
		p.mu.Unlock()
		if !toxics.Stall {
			return toxics, p.closed.Err() == nil
		}
		select {
		case <-changed:
		case <-p.closed.Done():
			return toxics, false
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

// write writes a chunk in slices of at most slice bytes; 0 means no limit.
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

// match returns the rule that applies to a chunk, or nil, and the tail for the next call.
func (p *Proxy) match(tail, chunk []byte) (hit *DropRule, end []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.rules) == 0 {
		return nil, nil
	}
	text := bytes.ToLower(append(tail, chunk...))
	wordMax := 0
	for i := 0; i < len(p.rules); i++ {
		rule := p.rules[i]
		for _, word := range rule.Words {
			wordMax = max(wordMax, len(word))
			at := bytes.Index(text, []byte(strings.ToLower(word)))
			if at < 0 || at+len(word) <= len(tail) {
				continue // an earlier call has counted a word within the tail
			}
			if rule.Skip--; rule.Skip >= 0 {
				break
			}
			p.rules = append(p.rules[:i], p.rules[i+1:]...)
			p.dropped++
			return rule, nil
		}
	}
	return nil, bytes.Clone(text[max(0, len(text)-wordMax+1):])
}
