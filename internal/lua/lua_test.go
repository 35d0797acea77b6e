package lua_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/lua"
	"holdfast/internal/stack/stacktest"
)

// TestRun_SeveralScripts_ShareRuns runs calls of two scripts on several hash tags, mixed. Calls of
// one script share runs of at most pack calls, in their order, and each has its own KEYS, ARGV and
// reply.
func TestRun_SeveralScripts_ShareRuns(t *testing.T) {
	t.Parallel()
	b := newExclusiveHarness(t)
	other := lua.NewPacked("recorder", "allow-oom", pack, recorderSource) // another script with the same name
	var calls []*lua.Call
	want := make(map[string][]string)
	add := func(s lua.Script, tag string) {
		name := fmt.Sprintf("%s %d", tag, len(want[tag]))
		want[tag] = append(want[tag], name)
		calls = append(calls, b.call(s, tag, name, "", strings.Repeat("x", len(calls)), len(calls)))
	}
	for i := range 2*pack + 1 {
		add(packed, "a")
		if i < pack {
			add(packed, "b")
		}
		if i == pack {
			add(packed, "c")
		}
		add(other, "d")
	}
	lua.Run(t.Context(), b.Client, calls) // loads both scripts
	b.takeRunCounts(t)
	if err := b.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	lua.Run(t.Context(), b.Client, calls)
	const wantRuns = 4 + 3
	if evalsha, eval := b.takeRunCounts(t); evalsha != wantRuns || eval != 0 {
		t.Errorf("%d runs by EVALSHA and %d by EVAL, want %d and 0", evalsha, eval, wantRuns)
	}
	seen := make(map[bool]int) // by whether the script is other
	for i, c := range calls {
		tag, name := strings.Fields(c.Args[0].(string))[0], c.Args[0].(string)
		reply := []string{
			strconv.Itoa(seen[tag == "d"]%pack + 1), "2", c.Keys[0], c.Keys[1], "string", name, "string", "",
			"string", strings.Repeat("x", i), "string", strconv.Itoa(i),
		}
		seen[tag == "d"]++
		if c.Err != nil || c.Status != "ok" || !slices.Equal(c.Reply, reply) {
			t.Errorf("%s: %v %s %q, want %q", name, c.Err, c.Status, c.Reply, reply)
		}
	}
	for tag, names := range want {
		if got := b.LRange(t.Context(), b.listKey(tag), 0, -1).Val(); !slices.Equal(got, names) {
			t.Errorf("the calls on %s ran in the order %q, want %q", tag, got, names)
		}
	}
}

// TestRun_SameNameOtherSource_RunsItsOwn runs two scripts with the same name and hash tag, like two
// versions of one script: each call runs its own source.
func TestRun_SameNameOtherSource_RunsItsOwn(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	first := lua.NewPacked("same name", "", pack, "local function run() return {'ok', 'first'} end")
	second := lua.NewPacked("same name", "", pack, "local function run() return {'ok', 'second'} end")
	calls := []*lua.Call{b.call(first, "a", "1", ""), b.call(second, "a", "2", ""), b.call(first, "a", "3", "")}
	lua.Run(t.Context(), b.Client, calls)
	for i, want := range []string{"first", "second", "first"} {
		if got := positionInRun(t, calls[i]); got != want {
			t.Errorf("call %d ran the %s script, want the %s", i, got, want)
		}
	}
}

// TestRun_AnyArguments_ArriveUnchanged passes unusual arguments to a packed script and compares the
// reply with the unpacked script: alone in its run, and with other calls.
func TestRun_AnyArguments_ArriveUnchanged(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	args := []any{
		"", "0", " ", "a b", string(every), every, []byte(nil), "\r\n*3\r\n", "ä😀", "\xff\x00",
		strings.Repeat("long ", 50_000),
		0, 1, -1, int64(1) << 62, int64(-1) << 63, 1<<53 + 1, 1_000_000_000_000, "-", "1e3", "nil",
	}
	want := b.call(alone, "a", "x", "", args...)
	lua.Run(t.Context(), b.Client, []*lua.Call{want})
	if err := want.Expect(len(args)); err != nil {
		t.Fatal(err)
	}
	for beside := range pack {
		calls := make([]*lua.Call, beside+1)
		for i := range calls {
			calls[i] = b.call(packed, "a", "x", "", args[:i]...)
		}
		calls[beside].Args = append([]any{"x", ""}, args...)
		lua.Run(t.Context(), b.Client, calls)
		got := calls[beside]
		if got.Err != nil || got.Status != want.Status || got.Reply[0] != strconv.Itoa(beside+1) ||
			!slices.Equal(got.Reply[1:], want.Reply[1:]) {
			t.Errorf("with %d other calls: %v %.200q, alone %.200q", beside, got.Err, got.Reply, want.Reply)
		}
		for i, c := range calls[:beside] {
			if err := c.Expect(3 + 2*(2+i)); err != nil || len(c.Reply) != 4+2*(2+i) {
				t.Errorf("other call %d: %v, %d values", i, err, len(c.Reply))
			}
		}
	}
}

// TestRun_ManyArguments_RunAlone makes calls with more arguments than Lua unpacks at once (about
// 8,000), with other calls and alone.
func TestRun_ManyArguments_RunAlone(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	const many = 9000
	for _, sizes := range [][]int{{many}, {0, many, 0}, {many, 0}, {many, many}, {0, 0, 0, 0, many, 0},
		{4000, 4000, 4000}} {
		var calls []*lua.Call
		var names []string
		tag := fmt.Sprint(len(sizes), sizes[0], sizes[len(sizes)-1])
		for i, n := range sizes {
			names = append(names, strconv.Itoa(i))
			calls = append(calls, b.call(packed, tag, names[i], "none so far"))
			for range n {
				calls[i].Args = append(calls[i].Args, i)
			}
		}
		lua.Run(t.Context(), b.Client, calls)
		for i, c := range calls {
			if err := c.Expect(4 + 2*len(c.Args)); err != nil || c.Reply[len(c.Reply)-1] != fmt.Sprint(c.Args[len(c.Args)-1]) {
				t.Errorf("%v arguments: call %d: %v", sizes, i, err)
			}
		}
		if got := b.LRange(t.Context(), b.listKey(tag), 0, -1).Val(); !slices.Equal(got, names) {
			t.Errorf("%v arguments: ran in the order %q", sizes, got)
		}
	}
}

// TestRun_OneCallFails_OthersSucceed makes calls of a run fail in different ways. The writes of a
// failed call before its failure remain, and all calls before and after it run. Its error is the
// same as if it had run alone, so callers classify it in the same way.
func TestRun_OneCallFails_OthersSucceed(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	unknown := "Unknown Redis command"
	if strings.Contains(b.Info(t.Context(), "server").Val(), "server_name:valkey") {
		unknown = "Unknown command called from script"
	}
	for fails, prefix := range map[string]string{
		"wrong type": "WRONGTYPE ", "no number": "value is not an integer", "unknown command": unknown,
		"lua": "user_script:", "error": "user_script:", "table": "OWN a text",
	} {
		for at := range pack {
			tag := fmt.Sprintf("%s %d", fails, at)
			if err := b.RPush(t.Context(), b.listKey(tag), "first").Err(); err != nil {
				t.Fatal(err)
			}
			calls := make([]*lua.Call, pack+1)
			for i := range calls {
				calls[i] = b.call(packed, tag, strconv.Itoa(i), "")
			}
			calls[at].Args[1], calls[at].Status, calls[at].Reply = fails, "ok", []string{"of an earlier run"}
			single := b.call(alone, tag, "same name", fails)
			lua.Run(t.Context(), b.Client, append(calls, single))
			want := []string{"first"}
			for i, c := range calls {
				if n := b.doneCount(t, tag, strconv.Itoa(i)); n != 1 {
					t.Errorf("%s: call %d ran %d times", tag, i, n)
				}
				if i != at {
					want = append(want, strconv.Itoa(i))
					if got := positionInRun(t, c); got != strconv.Itoa(i%pack+1) {
						t.Errorf("%s: call %d has number %s in its run", tag, i, got)
					}
				}
			}
			if got := b.LRange(t.Context(), b.listKey(tag), 0, -1).Val(); !slices.Equal(got, want) {
				t.Errorf("%s: ran %q, want %q", tag, got, want)
			}
			c := calls[at]
			for which, err := range map[string]error{"packed": c.Err, "alone": single.Err} {
				var its redis.Error
				if !errors.As(err, &its) || !redis.HasErrorPrefix(err, prefix) || !strings.Contains(err.Error(), "recorder.lua: ") {
					t.Errorf("%s, %s: the error is %v, want one of Redis with %q", tag, which, err, prefix)
				}
			}
			if c.Status != "" || c.Reply != nil || c.Expect(0) == nil {
				t.Errorf("%s: the failed call has the reply %q %q", tag, c.Status, c.Reply)
			}
		}
	}
}

// TestRun_ScriptUnknown_RunsItOnce flushes the scripts of the server and runs a packed script, an
// unpacked one, and a known one with them. Each call that has not run is run once.
func TestRun_ScriptUnknown_RunsItOnce(t *testing.T) {
	t.Parallel()
	b := newExclusiveHarness(t)
	known := lua.NewPacked("known", "", pack, recorderSource+"-- known")
	lua.Run(t.Context(), b.Client, []*lua.Call{b.call(known, "k", "before", "")})
	for round := range 2 {
		if err := b.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		lua.Run(t.Context(), b.Client, []*lua.Call{b.call(known, "k", "again", "")})
		b.takeRunCounts(t)
		var calls []*lua.Call
		for i := range pack + 1 {
			name := fmt.Sprintf("%d-%d", round, i)
			calls = append(calls, b.call(packed, "a", name, ""), b.call(alone, "a", name+"-alone", ""),
				b.call(known, "a", name+"-known", ""))
		}
		calls = append(calls, b.call(packed, "b", fmt.Sprintf("%d-wrong", round), "wrong type"))
		b.RPush(t.Context(), b.listKey("b"), "first")
		lua.Run(t.Context(), b.Client, calls)
		for _, c := range calls[:len(calls)-1] {
			if err := c.Expect(1); err != nil {
				t.Error(err)
			}
		}
		for _, c := range calls {
			if n := b.Get(t.Context(), c.Keys[1]).Val(); n != "1" {
				t.Errorf("%v ran %s times", c.Args[0], n)
			}
		}
		if err := calls[len(calls)-1].Err; !redis.HasErrorPrefix(err, "WRONGTYPE") {
			t.Errorf("the call's own error after NOSCRIPT: %v", err)
		}
		const unknown, others = 2 + (pack + 1), 2 // runs
		if evalsha, eval := b.takeRunCounts(t); evalsha != unknown+others || eval != unknown {
			t.Errorf("%d runs by EVALSHA and %d by EVAL, want %d and %d", evalsha, eval, unknown+others, unknown)
		}
	}
}

// TestRun_PackedAndUnpacked_BothRun runs calls of an unpacked script among calls of a packed one
// with the same tag.
func TestRun_PackedAndUnpacked_BothRun(t *testing.T) {
	t.Parallel()
	b := newExclusiveHarness(t)
	one := lua.NewPacked("one", "", 1, recorderSource)
	for range 2 { // the first round loads the scripts
		calls := []*lua.Call{
			b.call(alone, "a", "0", ""), b.call(packed, "a", "1", ""), b.call(alone, "a", "2", ""), b.call(packed, "a", "3", ""),
			b.call(one, "a", "4", ""), b.call(one, "a", "5", "lua"), b.call(one, "a", "6", ""),
		}
		b.takeRunCounts(t)
		lua.Run(t.Context(), b.Client, calls)
		if calls[5].Err == nil {
			t.Error("the failing call answers ok")
		}
		calls = slices.Delete(calls, 5, 6)
		for i, want := range []string{"1", "1", "1", "2", "1", "1"} {
			name := calls[i].Args[0].(string)
			if got := positionInRun(t, calls[i]); got != want || calls[i].Reply[5] != name {
				t.Errorf("call %s has number %s in its run, want %s, and the reply %q", name, got, want, calls[i].Reply)
			}
		}
	}
	if evalsha, eval := b.takeRunCounts(t); evalsha != 6 || eval != 0 {
		t.Errorf("%d runs by EVALSHA and %d by EVAL, want 6 and 0", evalsha, eval)
	}
}

// TestRun_MalformedReply_FailsItsCall makes calls return malformed replies. Each is an error of its
// call, but not a Redis error, because the call may have run.
func TestRun_MalformedReply_FailsItsCall(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	wrong := []string{"none", "empty", "no list", "nested"}
	for _, fails := range wrong {
		for at := range pack {
			calls := make([]*lua.Call, pack)
			tag := fmt.Sprint(fails, at)
			for i := range calls {
				calls[i] = b.call(packed, tag, strconv.Itoa(i), "")
			}
			calls[at].Args[1] = fails
			lua.Run(t.Context(), b.Client, calls)
			for i, c := range calls {
				var its redis.Error
				if i == at && (c.Err == nil || errors.As(c.Err, &its) || c.Status != "" || c.Reply != nil) {
					t.Errorf("%s: %q %q %v", fails, c.Status, c.Reply, c.Err)
				}
				if i != at && c.Expect(1) != nil {
					t.Errorf("%s at %d: the other call %d: %v", fails, at, i, c.Err)
				}
			}
		}
	}
	for source, wants := range map[string][]bool{ // whether each call of a run has a reply
		"{}":                           {false, false, false},
		"{{'ok'}}":                     {true, false, false},
		"{{'ok'}, false, {'ok'}}":      {true, false, true},
		"{{'ok'}, 'ok', {'ok'}}":       {true, false, true},
		"{{'ok'}, {ok = 'ok'}, {'x'}}": {true, false, true},
		"{{'ok'}, {err = 'X'}, {'x'}}": {true, false, true},
		"7":                            {false, false, false},
		"nil":                          {false, false, false},
		"'ok'":                         {false, false, false},
		"{{'ok'},{'ok'},{'ok'},{'x'}}": {true, true, true},
	} {
		short := lua.NewPacked("short", "", pack, "local function run() end do return "+source+" end")
		calls := []*lua.Call{b.call(short, "a", "1", ""), b.call(short, "a", "2", ""), b.call(short, "a", "3", "")}
		lua.Run(t.Context(), b.Client, calls)
		for i, c := range calls {
			if answered := c.Err == nil; answered != wants[i] {
				t.Errorf("%s: call %d: %q %v", source, i, c.Status, c.Err)
			}
		}
	}
	c := b.call(packed, "a", "x", "")
	if err := c.Expect(0); err == nil {
		t.Error("a call that did not run is ok")
	}
	lua.Run(t.Context(), b.Client, []*lua.Call{c})
	if got := len(c.Reply); c.Expect(got) != nil || c.Expect(got+1) == nil {
		t.Errorf("%d values: %v", got, c.Err)
	}
}

// cutter is a connection that is cut after a number of bytes of the next script's reply. It reads
// and drops the rest, so that the request runs but its reply is lost.
type cutter struct {
	net.Conn
	after *atomic.Int64 // bytes; negative for never
	armed bool
}

func (c *cutter) Write(p []byte) (int, error) {
	c.armed = c.armed || strings.Contains(strings.ToLower(string(p[:min(len(p), 64)])), "evalsha")
	return c.Conn.Write(p)
}

func (c *cutter) Read(p []byte) (int, error) {
	left := c.after.Load()
	if !c.armed || left < 0 {
		return c.Conn.Read(p)
	}
	if left == 0 {
		if _, err := c.Conn.Read(p); err != nil { // the request has run
			return 0, err
		}
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.after.Add(-int64(n))
	return n, err
}

// TestRun_ConnectionCut_FailsUnansweredCalls cuts the connection before the reply, after the reply
// of the first run, and within that of the second. Every call whose reply was lost has an error
// that is not a Redis error, and no request is repeated.
func TestRun_ConnectionCut_FailsUnansweredCalls(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	quiet := lua.NewPacked("quiet", "", pack, "local function run(KEYS) redis.call('INCR', KEYS[2]) return {'ok'} end")
	first := int64(len("*1\r\n*1\r\n$2\r\nok\r\n"))
	lua.Run(t.Context(), b.Client, []*lua.Call{b.call(quiet, "a", "x", "")})
	for round, c := range []struct {
		after    int64
		answered int // maximum number of replies
	}{{0, 0}, {first - 1, 0}, {first, 1}, {first + 1, 1}, {2*first + 1, 1}, {-1, 4}} {
		var after atomic.Int64
		after.Store(c.after)
		options := stacktest.RedisOptions(stacktest.Shared().RedisURL)
		options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &cutter{Conn: conn, after: &after}, err
		}
		name := strconv.Itoa(round)
		calls := []*lua.Call{b.call(quiet, "a", name, "")}
		for i := range 3 {
			calls = append(calls, b.call(quiet, "b", fmt.Sprint(name, "-", i), ""))
		}
		lua.Run(t.Context(), newClient(t, options), calls)
		for i, call := range calls {
			var its redis.Error
			lost := call.Err != nil && !errors.As(call.Err, &its) && call.Status == "" && call.Reply == nil
			// The client may also lose replies that came before the cut.
			if answered := call.Err == nil && call.Status == "ok"; answered && i >= c.answered || !answered && !lost ||
				c.after < 0 && lost {
				t.Errorf("cut after %d bytes: call %d: %q %v", c.after, i, call.Status, call.Err)
			}
			stacktest.Eventually(t, "the call to run", func() bool {
				return b.Get(t.Context(), call.Keys[1]).Val() == "1"
			})
		}
	}
}

// TestRun_ReplyLost_IsNotRepeated loses the reply of a run with stacktest.DropReply, as other
// packages' tests do.
func TestRun_ReplyLost_IsNotRepeated(t *testing.T) {
	t.Parallel()
	b := newHarness(t)
	calls := []*lua.Call{b.call(packed, "a", "1", ""), b.call(packed, "a", "2", ""),
		b.call(packed, "a", "3", "wrong type")}
	lua.Run(t.Context(), b.Client, calls)
	stacktest.DropReply(b.Client, 1, "evalsha")
	lua.Run(t.Context(), b.Client, calls)
	for i, c := range calls {
		if !errors.Is(c.Err, stacktest.ErrReplyDropped) {
			t.Errorf("call %d: %v", i, c.Err)
		}
		if n := b.doneCount(t, "a", strconv.Itoa(i+1)); n != 2 {
			t.Errorf("call %d ran %d times, want 2", i, n)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	lua.Run(ctx, b.Client, calls)
	for i, c := range calls {
		if !errors.Is(c.Err, context.Canceled) {
			t.Errorf("call %d of a cancelled caller: %v", i, c.Err)
		}
	}
	lua.Run(t.Context(), b.Client, nil) // no calls
}

// TestRunTransaction_WatchedKeyChanged_Conflicts runs packed scripts in a transaction: each call
// has its own reply. When a watched key has changed or the script is unknown, nothing runs and
// every call has the status conflict.
func TestRunTransaction_WatchedKeyChanged_Conflicts(t *testing.T) {
	t.Parallel()
	b := newExclusiveHarness(t)
	version := b.prefix + "{a}:version"
	transact := func(change bool) (calls []*lua.Call, refused bool) {
		t.Helper()
		calls = []*lua.Call{
			b.call(packed, "a", "1", ""), b.call(packed, "a", "2", "lua"), b.call(packed, "a", "3", ""),
			b.call(packed, "a", "4", "wrong type"), b.call(packed, "a", "5", ""), b.call(alone, "a", "6", ""),
		}
		conn := b.Conn()
		defer func() { _ = conn.Close() }()
		if err := conn.Do(t.Context(), "watch", version).Err(); err != nil {
			t.Fatal(err)
		}
		if change {
			if err := b.Incr(t.Context(), version).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return calls, lua.RunTransaction(t.Context(), conn, calls, "conflict")
	}
	conflict := func(what string, calls []*lua.Call) {
		t.Helper()
		for i, c := range calls {
			if c.Err != nil || c.Status != "conflict" || c.Reply != nil {
				t.Errorf("%s: call %d: %q %q %v", what, i, c.Status, c.Reply, c.Err)
			}
		}
		if n := b.Exists(t.Context(), b.listKey("a")).Val(); n != 0 {
			t.Errorf("%s: a call has run", what)
		}
	}
	calls, refused := transact(false)
	if refused {
		t.Error("refused although no key has changed")
	}
	conflict("the script is not known", calls)

	b.takeRunCounts(t)
	calls, refused = transact(true)
	if !refused {
		t.Error("not refused although a watched key has changed")
	}
	conflict("changed", calls)

	calls, refused = transact(false)
	if refused {
		t.Error("refused although no key has changed")
	}
	for i, want := range []string{"1", "", "3", "", "1", "1"} {
		switch c := calls[i]; {
		case want == "" && (c.Err == nil || redis.HasErrorPrefix(c.Err, "NOSCRIPT")):
			t.Errorf("call %d: %q %v", i, c.Status, c.Err)
		case want != "" && positionInRun(t, c) != want:
			t.Errorf("call %d has number %s in its run, want %s", i, positionInRun(t, c), want)
		}
		if n := b.doneCount(t, "a", calls[i].Args[0].(string)); n != 1 {
			t.Errorf("call %d ran %d times", i, n)
		}
	}
	if evalsha, eval := b.takeRunCounts(t); evalsha != 3 || eval != 0 {
		t.Errorf("%d runs by EVALSHA and %d by EVAL, want 3 and 0", evalsha, eval)
	}
}

// TestRun_ServerRefusesByFlag_FailsWholeRun makes a server refuse scripts because of the flags in
// their shebang: it is out of memory, is a replica, lacks replicas or loads its data. It refuses
// the whole run, nothing of it runs, and every call has the error. A script with the flag for the
// condition runs.
func TestRun_ServerRefusesByFlag_FailsWholeRun(t *testing.T) {
	t.Parallel()
	b, master := newExclusiveHarness(t), newExclusiveHarness(t)
	ctx := t.Context()
	reads := lua.NewPacked("reads", "no-writes", pack,
		"local function run(KEYS) return {'ok', redis.call('GET', KEYS[2]) or '-'} end")
	gives := lua.NewPacked("gives", "allow-oom", pack, recorderSource)
	configure := func(name, value string) {
		t.Helper()
		if err := b.ConfigSet(ctx, name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	round := 0
	run := func() (calls []*lua.Call) {
		round++
		for _, s := range []lua.Script{packed, gives, reads} {
			for i := range 2 {
				calls = append(calls, b.call(s, "a", fmt.Sprint(s.Name, round, "-", i), ""))
			}
		}
		lua.Run(ctx, b.Client, calls)
		return calls
	}
	check := func(refused string, names ...string) {
		t.Helper()
		for _, c := range run() {
			name := c.Args[0].(string)
			if !slices.Contains(names, c.Script.Name) {
				if c.Expect(1) != nil {
					t.Errorf("%s, %s: %v", refused, name, c.Err)
				}
				continue
			}
			var its redis.Error
			if !errors.As(c.Err, &its) || !redis.HasErrorPrefix(c.Err, refused) || c.Status != "" {
				t.Errorf("%s: %q %v, want %s", name, c.Status, c.Err, refused)
			}
			if b.doneCount(t, "a", name) != 0 {
				t.Errorf("%s was refused but has run", name)
			}
		}
	}
	check("nothing")
	configure("maxmemory", "1")
	check("OOM", "recorder")
	conn := b.Conn()
	together := []*lua.Call{b.call(packed, "a", "refused", ""), b.call(gives, "a", "with it", "")}
	refused := lua.RunTransaction(ctx, conn, together, "conflict")
	_ = conn.Close()
	wants := []string{"OOM", "OOM"}
	if !strings.Contains(b.Info(ctx, "server").Val(), "redis_version:7.0.") {
		wants[1] = "EXECABORT" // it was discarded, not refused
	}
	for i, c := range together {
		var its redis.Error
		if refused || !errors.As(c.Err, &its) || !redis.HasErrorPrefix(c.Err, wants[i]) {
			t.Errorf("in a transaction with a refused script: call %d: %q %v, want %s", i, c.Status, c.Err, wants[i])
		}
	}
	configure("maxmemory", "0")
	configure("min-replicas-to-write", "1")
	check("NOREPLICAS", "recorder", "gives")
	configure("min-replicas-to-write", "0")

	pipe := master.Pipeline()
	for i := range 2000 {
		pipe.Set(ctx, fmt.Sprintf("%d", i), strings.Repeat("x", 1000), 0)
	}
	pipe.ConfigSet(ctx, "repl-diskless-sync-delay", "0")
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	configure("key-load-delay", "5000") // µs
	configure("loading-process-events-interval-bytes", "1024")
	host, port, _ := strings.Cut(master.Options().Addr, ":")
	if err := b.Do(ctx, "replicaof", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	// A replica reports READONLY before it reports that it loads.
	stacktest.Eventually(t, "the server to load its data", func() bool {
		for _, c := range run() {
			refused := map[bool]string{true: "LOADING", false: "READONLY"}[c.Script.Name == "reads"]
			if !redis.HasErrorPrefix(c.Err, refused) {
				return false
			}
		}
		return true
	})
	configure("key-load-delay", "0")
	stacktest.Eventually(t, "the data to be loaded", func() bool { return b.Exists(ctx, "0").Val() == 1 })
	check("READONLY", "recorder", "gives")
}

// TestRun_Cluster_SharesRunsByHashTag checks that calls share a run in a cluster when their keys
// have the same hash tag by the rule of Redis Cluster: the text between the first opening brace and
// the next closing one, if it is not empty.
func TestRun_Cluster_SharesRunsByHashTag(t *testing.T) {
	t.Parallel()
	script := lua.NewPacked("nth", "", 2, "")
	for _, c := range []struct {
		one, other string
		together   bool
	}{
		{"x{a}1", "y{a}2", true},
		{"x{a}1", "x{b}1", false},
		{"same", "same", true},
		{"none", "nine", false},
		{"x{}1", "x{}2", false}, // an empty tag is no tag
		{"x{}1", "x{}1", true},
		{"x{}{a}", "y{}{a}", false}, // and a later tag does not count either
		{"x{}{a}", "x{}{a}", true},
		{"{{a}}1", "2{{a}", true}, // the tag is {a
		{"{{a}}1", "{a}", false},
		{"{a}{b}", "{a}{c}", true}, // the first counts
		{"{a}{b}", "{c}{b}", false},
		{"x{a", "y{a", false}, // never closed
		{"}x{a}", "}y{a}", true},
		{"}x{a", "}x{a", true},
		{"a}b{", "a}c{", false},
		{"x{a}", "a", true}, // the whole key
	} {
		calls := []*lua.Call{{Script: script, Keys: []string{c.one}}, {Script: script, Keys: []string{c.other}}}
		if together := lua.Runs(calls, true) == 1; together != c.together {
			t.Errorf("%s and %s share a run: %v, want %v", c.one, c.other, together, c.together)
		}
	}
}

// TestExec_LoginRefused_ReturnsItsError executes a pipeline on a connection that Redis refuses, of which the
// commands do not know, and one whose first command fails.
func TestExec_LoginRefused_ReturnsItsError(t *testing.T) {
	t.Parallel()
	options, err := redis.ParseURL(stacktest.Shared().RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]bool{"": false, "holdfast_nobody": true} {
		options := *options
		options.Username, options.Password = user, options.Password+user
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		pipe := client.Pipeline()
		missing, ping := pipe.Get(t.Context(), stacktest.Namespace(t)), pipe.Ping(t.Context())
		err := lua.Exec(t.Context(), pipe)
		if refused := redis.HasErrorPrefix(err, "WRONGPASS"); refused != want || !refused && err != nil {
			t.Errorf("as user %q: %v", user, err)
		}
		if !want && (!errors.Is(missing.Err(), redis.Nil) || ping.Err() != nil) {
			t.Errorf("the commands have the errors %v and %v", missing.Err(), ping.Err())
		}
	}
}
