package torture

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/stack/stacktest"
)

// echo is a server that answers each line with itself, and remembers it.
type echo struct {
	net.Listener
	mu    sync.Mutex
	heard []string
	ends  []error
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{Listener: l}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { e.serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return e
}

func (e *echo) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		e.mu.Lock()
		if err == nil {
			e.heard = append(e.heard, strings.TrimSpace(line))
		} else {
			e.ends = append(e.ends, err)
		}
		e.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := io.WriteString(c, line); err != nil {
			return
		}
	}
}

func (e *echo) has(line string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.heard, line)
}

// through returns a proxy before an echo server, and a connection through it.
func through(t *testing.T) (*Proxy, *echo, net.Conn) {
	t.Helper()
	e := newEcho(t)
	p, err := NewProxy(e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	c := dial(t, p)
	say(t, c, "hello") // its dialer knows a connection before the proxy does
	hear(t, c, "hello")
	return p, e, c
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp4", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want)+1)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want+"\n" {
		t.Fatalf("heard %q, %v, want %q", got, err, want)
	}
}

func TestProxyForwards(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	say(t, c, "a")
	hear(t, c, "a")
	other := newEcho(t)
	p.Target(other.Addr().String())
	say(t, c, "b") // of before
	hear(t, c, "b")
	fresh := dial(t, p)
	say(t, fresh, "c")
	hear(t, fresh, "c")
	if !other.has("c") {
		t.Error("the new target has not heard what was said to it")
	}
}

func TestProxyForwardsAnEnd(t *testing.T) {
	t.Parallel()
	_, _, c := through(t)
	say(t, c, "a")
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "a\n" {
		t.Errorf("after a goodbye %q, %v: the other way must go on to its end", got, err)
	}
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]bool{"FIN": false, "RST": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, e, c := through(t)
			say(t, c, "a")
			hear(t, c, "a")
			p.Cut(reset)
			_, err := c.Read(make([]byte, 1))
			if reset != errors.Is(err, syscall.ECONNRESET) || !reset && !errors.Is(err, io.EOF) {
				t.Errorf("the client sees %v", err)
			}
			stacktest.Eventually(t, "the server's end", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return len(e.ends) == 1 && reset == errors.Is(e.ends[0], syscall.ECONNRESET)
			})
			again := dial(t, p)
			say(t, again, "b")
			hear(t, again, "b")
		})
	}
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	p, e, c := through(t)
	say(t, c, "there")
	hear(t, c, "there")
	p.Refuse(true)
	if refused, err := net.Dial("tcp4", p.Addr()); err == nil { // it may be refused before it is told that it stands
		_, _ = io.WriteString(refused, "x\n") // or now
		if _, err := refused.Read(make([]byte, 1)); err == nil {
			t.Error("a connection was not refused")
		}
		_ = refused.Close() // it is gone
	}
	say(t, c, "still")
	hear(t, c, "still")
	p.Refuse(false)
	again := dial(t, p)
	say(t, again, "b")
	hear(t, again, "b")
	if e.has("x") {
		t.Error("the server has heard who was refused")
	}
}

// TestProxyStalls stalls each way alone: what is said up does not arrive, what is answered is
// done and not heard, and all of it arrives afterwards.
func TestProxyStalls(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]Way{"up": Up, "down": Down} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, e, c := through(t)
			p.Set(w, Path{Stall: true})
			say(t, c, "a")
			if w == Down {
				stacktest.Eventually(t, "the server to hear", func() bool { return e.has("a") })
			}
			if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errTimeout(err)) {
				t.Errorf("something came through: %v", err)
			}
			if w == Up && e.has("a") {
				t.Error("the server has heard")
			}
			if err := c.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			p.Set(w, Path{})
			hear(t, c, "a")
		})
	}
}

// errTimeout returns err when it is a timeout, and nothing that it could be when it is not.
func errTimeout(err error) error {
	if timeout := (net.Error)(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return err
	}
	return errors.New("a timeout")
}

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	const delay = 30 * time.Millisecond
	p.Set(Up, Path{Delay: delay})
	p.Set(Down, Path{Delay: delay})
	began := time.Now()
	say(t, c, "a")
	hear(t, c, "a")
	if took := time.Since(began); took < 2*delay {
		t.Errorf("an answer took %v, less than both delays", took)
	}
}

// pieces is a connection that keeps what was written to it at a time.
type pieces struct {
	net.Conn
	written []string
}

func (p *pieces) Write(b []byte) (int, error) {
	p.written = append(p.written, string(b))
	return len(b), nil
}

func TestProxySlices(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	p.Set(Down, Path{Slice: 3})
	long := strings.Repeat("abcdefg", 20)
	say(t, c, long)
	hear(t, c, long)

	// How much is heard at a time depends on who hears.
	server, said := net.Pipe()
	go func() { _, _ = io.WriteString(said, "12345678"); _ = said.Close() }()
	out := &pieces{}
	p.pump(&link{client: out, server: server}, Down, server, out)
	if !slices.Equal(out.written, []string{"123", "456", "78"}) {
		t.Errorf("it was written as %q", out.written)
	}
}

// TestProxyLosesReplies loses the third answer: the server has done what was asked.
func TestProxyLosesReplies(t *testing.T) {
	t.Parallel()
	p, e, c := through(t)
	p.Lose(Loss{Words: []string{"COMMIT", "end"}, Skip: 1})
	for _, line := range []string{"begin", "commit 1", "other"} {
		say(t, c, line)
		hear(t, c, line)
	}
	say(t, c, "Commit 2")
	if got, err := io.ReadAll(c); len(got) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("heard %q, %v of an answer that was lost", got, err)
	}
	stacktest.Eventually(t, "the server to have done it", func() bool { return e.has("Commit 2") })
	if p.Lost() != 1 {
		t.Errorf("%d lost", p.Lost())
	}
	again := dial(t, p)
	say(t, again, "commit 3")
	hear(t, again, "commit 3")
}

// TestProxyLosesRequests loses a request: the server never hears of it.
func TestProxyLosesRequests(t *testing.T) {
	t.Parallel()
	p, e, c := through(t)
	p.Lose(Loss{Words: []string{"commit"}, Request: true})
	say(t, c, "first")
	hear(t, c, "first")
	say(t, c, "first com")
	hear(t, c, "first com")
	say(t, c, "mit") // no word: there was an end of line
	hear(t, c, "mit")
	_, _ = io.WriteString(c, "commit\n")
	if got, err := io.ReadAll(c); len(got) > 0 || err == nil {
		t.Errorf("heard %q, %v of a request that was lost", got, err)
	}
	if e.has("commit") {
		t.Error("the server has heard what was lost")
	}
}

func TestProxyCalms(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	p.Refuse(true)
	p.Set(Up, Path{Stall: true})
	p.Lose(Loss{Words: []string{"a"}})
	say(t, c, "b")
	p.Calm()
	hear(t, c, "b")
	say(t, c, "a")
	hear(t, c, "a")
	fresh := dial(t, p)
	say(t, fresh, "a")
	hear(t, fresh, "a")
}

func TestMatchAcrossPieces(t *testing.T) {
	t.Parallel()
	text := []byte("xxCoMMiTyy")
	for cut := range text {
		p := &Proxy{losses: []*loss{{Loss: Loss{}, words: [][]byte{[]byte("commit")}}}}
		hit, tail := p.match(nil, bytes.Clone(text[:cut]))
		if hit == nil {
			hit, _ = p.match(tail, bytes.Clone(text[cut:]))
		}
		if hit == nil {
			t.Errorf("cut at %d: not found", cut)
		}
	}
}
