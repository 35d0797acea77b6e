package stacktest

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
)

// echo is a server that sends each line back, and records it.
type echo struct {
	net.Listener
	mu       sync.Mutex
	received []string
	ends     []error
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	Must(t, err)
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
			e.received = append(e.received, strings.TrimSpace(line))
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
	return slices.Contains(e.received, line)
}

// through returns a proxy in front of an echo server, and a connection through it.
func through(t *testing.T) (*Proxy, *echo, net.Conn) {
	t.Helper()
	e := newEcho(t)
	p, err := NewProxy(e.Addr().String())
	Must(t, err)
	t.Cleanup(func() { Must(t, p.Close()) })
	c := dial(t, p)
	sendLine(t, c, "hello") // after the reply the proxy has registered the connection
	wantLine(t, c, "hello")
	return p, e, c
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp4", p.Addr())
	Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func sendLine(t *testing.T, c net.Conn, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

func wantLine(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want)+1)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want+"\n" {
		t.Fatalf("read %q, %v, want %q", got, err, want)
	}
}

func TestProxy_TargetChanged_ForwardsNewConnections(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	sendLine(t, c, "a")
	wantLine(t, c, "a")
	other := newEcho(t)
	p.Target(other.Addr().String())
	sendLine(t, c, "b") // to the old target
	wantLine(t, c, "b")
	fresh := dial(t, p)
	sendLine(t, fresh, "c")
	wantLine(t, fresh, "c")
	if !other.has("c") {
		t.Error("the new target did not receive the line")
	}
}

func TestProxy_ClientEnds_OtherDirectionGoesOn(t *testing.T) {
	t.Parallel()
	_, _, c := through(t)
	sendLine(t, c, "a")
	Must(t, c.(*net.TCPConn).CloseWrite())
	if got, err := io.ReadAll(c); err != nil || string(got) != "a\n" {
		t.Errorf("after FIN the client read %q, %v, want the rest of the other direction", got, err)
	}
}

func TestProxy_HalfOpen_PresentConnectionsAreSilent(t *testing.T) {
	t.Parallel()
	p, e, c := through(t)
	p.HalfOpen()
	sendLine(t, c, "lost")
	fresh := dial(t, p)
	sendLine(t, fresh, "a")
	wantLine(t, fresh, "a")
	Must(t, c.(*net.TCPConn).CloseWrite())
	sendLine(t, fresh, "b")
	wantLine(t, fresh, "b")
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.received, "lost") || len(e.ends) != 0 {
		t.Errorf("the server received %q, and the ends %v", e.received, e.ends)
	}
}

func TestProxy_Cut_BothSidesSeeIt(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]bool{"FIN": false, "RST": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, e, c := through(t)
			sendLine(t, c, "a")
			wantLine(t, c, "a")
			p.Cut(reset)
			_, err := c.Read(make([]byte, 1))
			if reset != errors.Is(err, syscall.ECONNRESET) || !reset && !errors.Is(err, io.EOF) {
				t.Errorf("the client got %v", err)
			}
			Eventually(t, "the server's end", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return len(e.ends) == 1 && reset == errors.Is(e.ends[0], syscall.ECONNRESET)
			})
			again := dial(t, p)
			sendLine(t, again, "b")
			wantLine(t, again, "b")
		})
	}
}

func TestProxy_Refuse_NewConnectionsReset(t *testing.T) {
	t.Parallel()
	p, e, c := through(t)
	sendLine(t, c, "there")
	wantLine(t, c, "there")
	p.Refuse(true)
	if refused, err := net.Dial("tcp4", p.Addr()); err == nil { // the reset may come before Dial returns
		_, _ = io.WriteString(refused, "x\n") // or now
		if _, err := refused.Read(make([]byte, 1)); err == nil {
			t.Error("a connection was not refused")
		}
		_ = refused.Close() // already reset
	}
	sendLine(t, c, "still")
	wantLine(t, c, "still")
	p.Refuse(false)
	again := dial(t, p)
	sendLine(t, again, "b")
	wantLine(t, again, "b")
	if e.has("x") {
		t.Error("the server received a line of a refused connection")
	}
}

// TestProxy_StallOneDirection_ArrivesAfterwards stalls each direction alone. Upstream the server does
// not receive the line; downstream it does, and the client does not get the reply. After the stall
// everything arrives.
func TestProxy_StallOneDirection_ArrivesAfterwards(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]Direction{"upstream": Upstream, "downstream": Downstream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, e, c := through(t)
			p.Set(d, Toxics{Stall: true})
			sendLine(t, c, "a")
			if d == Downstream {
				Eventually(t, "the server to receive the line", func() bool { return e.has("a") })
			}
			Must(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errTimeout(err)) {
				t.Errorf("read during the stall: %v, want a timeout", err)
			}
			if d == Upstream && e.has("a") {
				t.Error("the server received the line during the stall")
			}
			Must(t, c.SetReadDeadline(time.Time{}))
			p.Set(d, Toxics{})
			wantLine(t, c, "a")
		})
	}
}

// errTimeout returns err when it is a timeout, else another error.
func errTimeout(err error) error {
	if timeout := (net.Error)(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return err
	}
	return errors.New("a timeout")
}

func TestProxy_DelayBothDirections_AnswerTakesBoth(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	const delay = 30 * time.Millisecond
	p.Set(Upstream, Toxics{Delay: delay})
	p.Set(Downstream, Toxics{Delay: delay})
	began := time.Now()
	sendLine(t, c, "a")
	wantLine(t, c, "a")
	if took := time.Since(began); took < 2*delay {
		t.Errorf("a reply took %v, less than both delays", took)
	}
}

// pieces is a connection that records each write.
type pieces struct {
	net.Conn
	written []string
}

func (p *pieces) Write(b []byte) (int, error) {
	p.written = append(p.written, string(b))
	return len(b), nil
}

func TestProxy_Slice_WritesSmallPieces(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	p.Set(Downstream, Toxics{Slice: 3})
	long := strings.Repeat("abcdefg", 20)
	sendLine(t, c, long)
	wantLine(t, c, long)

	// The size of a read depends on the reader, so this part observes the writes.
	server, writer := net.Pipe()
	go func() { _, _ = io.WriteString(writer, "12345678"); _ = writer.Close() }()
	out := &pieces{}
	p.pump(&link{client: out, server: server}, Downstream, server, out)
	if !slices.Equal(out.written, []string{"123", "456", "78"}) {
		t.Errorf("written as %q", out.written)
	}
}

// TestProxy_DropReply_ServerHasDoneIt drops a reply: the server has received the request.
func TestProxy_DropReply_ServerHasDoneIt(t *testing.T) {
	t.Parallel()
	p, e, c := through(t)
	p.Drop(DropRule{Words: []string{"COMMIT", "end"}, Skip: 1})
	for _, line := range []string{"begin", "commit 1", "other"} {
		sendLine(t, c, line)
		wantLine(t, c, line)
	}
	sendLine(t, c, "Commit 2")
	if got, err := io.ReadAll(c); len(got) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %q, %v after a dropped reply", got, err)
	}
	Eventually(t, "the server to have done it", func() bool { return e.has("Commit 2") })
	if p.Dropped() != 1 {
		t.Errorf("%d replies dropped, want 1", p.Dropped())
	}
	again := dial(t, p)
	sendLine(t, again, "commit 3")
	wantLine(t, again, "commit 3")
}

// TestProxy_DropRequest_ServerNeverSeesIt drops a request: the server does not receive it.
func TestProxy_DropRequest_ServerNeverSeesIt(t *testing.T) {
	t.Parallel()
	p, e, c := through(t)
	p.Drop(DropRule{Words: []string{"commit"}, Request: true})
	sendLine(t, c, "first")
	wantLine(t, c, "first")
	sendLine(t, c, "first com")
	wantLine(t, c, "first com")
	sendLine(t, c, "mit") // not the word: a line ended within it
	wantLine(t, c, "mit")
	_, _ = io.WriteString(c, "commit\n")
	if got, err := io.ReadAll(c); len(got) > 0 || err == nil {
		t.Errorf("read %q, %v after a dropped request", got, err)
	}
	if e.has("commit") {
		t.Error("the server received a dropped request")
	}
}

func TestProxy_Reset_EndsAllToxics(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	p.Refuse(true)
	p.Set(Upstream, Toxics{Stall: true})
	p.Drop(DropRule{Words: []string{"a"}})
	sendLine(t, c, "b")
	p.Reset()
	wantLine(t, c, "b")
	sendLine(t, c, "a")
	wantLine(t, c, "a")
	fresh := dial(t, p)
	sendLine(t, fresh, "a")
	wantLine(t, fresh, "a")
}

func TestMatch_WordAcrossChunks_IsFound(t *testing.T) {
	t.Parallel()
	text := []byte("xxCoMMiTyy")
	for cut := range text {
		p := &Proxy{rules: []*DropRule{{Words: []string{"Commit"}}}}
		hit, tail := p.match(nil, bytes.Clone(text[:cut]))
		if hit == nil {
			hit, _ = p.match(tail, bytes.Clone(text[cut:]))
		}
		if hit == nil {
			t.Errorf("cut at %d: not found", cut)
		}
	}
}

// TestRewrite_TextInChunks_IsReplaced splits what a server sends at each place.
func TestRewrite_TextInChunks_IsReplaced(t *testing.T) {
	t.Parallel()
	p, _, c := through(t)
	p.Rewrite(Downstream, "port 1", "port 2")
	p.Rewrite(Downstream, "host a", "host b")
	sendLine(t, c, "host a port 1 port 3")
	wantLine(t, c, "host b port 2 port 3")
	const text, want = "host a, port 1\nport 3 host c\n", "host b, port 2\nport 3 host c\n"
	for at := range text {
		first, kept := p.rewritten(Downstream, []byte(text[:at]))
		second, rest := p.rewritten(Downstream, append(kept, text[at:]...))
		if got := string(first) + string(second); got != want || len(rest) > 0 {
			t.Errorf("split at %d: got %q and keeps %q, want %q", at, got, rest, want)
		}
	}
}
