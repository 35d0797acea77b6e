package connect_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
	"holdfast/internal/stack"
	"holdfast/internal/stack/stacktest"
)

// TestRedisOptions_Malformed_ErrorWithoutPassword parses URLs and files that cannot be used.
func TestRedisOptions_Malformed_ErrorWithoutPassword(t *testing.T) {
	t.Parallel()
	ca := stacktest.TestCA(t)
	cert, key, err := ca.Issue("client")
	if err != nil {
		t.Fatal(err)
	}
	const notRedis = "not a Redis URL"
	for _, c := range []struct {
		address string
		files   connect.TLSFiles
		want    string
	}{
		{"http://ann:s3cret@h", connect.TLSFiles{}, notRedis},
		{"redis://ann:s3cret@h:port", connect.TLSFiles{}, notRedis},
		{"redis://ann:s3cret@h:1/zero", connect.TLSFiles{}, notRedis},
		{"redis://ann:s3%cret@h:1", connect.TLSFiles{}, notRedis},
		{"redis://s3cret#token@h:1", connect.TLSFiles{}, notRedis},
		{"rediss://:12#s3cret@h:1", connect.TLSFiles{}, notRedis},
		{"redis+cluster://s3cret#token@h:1", connect.TLSFiles{}, notRedis},
		{"redis+sentinel://s3cret#token@h:1/main", connect.TLSFiles{}, notRedis},
		{"unix://ann:12/s3cret@/run/redis.sock", connect.TLSFiles{}, notRedis},
		{"unix://run/redis.sock", connect.TLSFiles{}, notRedis},
		{"redis+cluster://ann:s3cret@", connect.TLSFiles{}, notRedis},
		{"redis+cluster://ann:s3cret@h:1,:2", connect.TLSFiles{}, notRedis},
		{"redis+cluster://ann:s3cret@h:1,i:70000", connect.TLSFiles{}, notRedis},
		{"redis+cluster://ann:s3cret@h:1,i:2/3", connect.TLSFiles{}, notRedis},
		{"redis+cluster://ann:s3cret@h:1?db=3", connect.TLSFiles{}, notRedis},
		{"redis+cluster://ann:s3cret@h:1", connect.TLSFiles{CA: ca.File}, "need TLS: use rediss://"},
		{"redis+sentinel://ann:s3cret@h:1", connect.TLSFiles{}, notRedis},
		{"redis+sentinel://ann:s3cret@h:1/", connect.TLSFiles{}, notRedis},
		{"redis+sentinel://ann:s3cret@h:1,:2/main", connect.TLSFiles{}, notRedis},
		{"redis+sentinel://ann:s3cret@h:1,i:70000/main", connect.TLSFiles{}, notRedis},
		{"redis+sentinel://ann:s3cret@h:1/main/zero", connect.TLSFiles{}, notRedis},
		{"redis://ann:s3cret@h", connect.TLSFiles{CA: ca.File}, "need TLS: use rediss://"},
		{"redis+sentinel://ann:s3cret@h/main", connect.TLSFiles{CA: ca.File}, "need TLS: use rediss://"},
		{"unix:///run/redis.sock", connect.TLSFiles{CA: ca.File}, "need TLS: use rediss://"},
		{"rediss://h", connect.TLSFiles{CA: filepath.Join(t.TempDir(), "absent")}, "--redis-ca-file: open"},
		{"rediss://h", connect.TLSFiles{CA: key}, "contains no certificate"},
		{"rediss://h", connect.TLSFiles{Cert: cert}, "--redis-cert-file and --redis-key-file belong together"},
		{"rediss://h", connect.TLSFiles{Key: key}, "--redis-cert-file and --redis-key-file belong together"},
		{"rediss://h", connect.TLSFiles{Cert: ca.File, Key: key}, "--redis-cert-file, --redis-key-file: tls:"},
	} {
		_, err := connect.RedisOptions(c.address, c.files)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3") {
			t.Errorf("%s %+v: %v, want %q", c.address, c.files, err, c.want)
		}
	}
}

// TestRedisOptions_WellFormed_AreParsed parses URLs of each form.
func TestRedisOptions_WellFormed_AreParsed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address, addr, user, password string
		db                            int
		isTLS                         bool
	}{
		{"redis://h", "h:6379", "", "", 0, false},
		{"redis://ann:p%40ss@h:1/2", "h:1", "ann", "p@ss", 2, false},
		{"rediss://:pw@h:1", "h:1", "", "pw", 0, true},
		{"unix://ann:pw@/run/redis.sock?db=3", "/run/redis.sock", "ann", "pw", 3, false},
		{"unix:///run/redis@1.sock", "/run/redis@1.sock", "", "", 0, false},
		{"redis://ann:p@ss@h?client_name=a@b", "h:6379", "ann", "p@ss", 0, false},
		{"redis+sentinel://h/main", "primary main", "", "", 0, false},
		{"redis+sentinel://ann:p%40s%2Fs@h:1,[::1]:2,[::1]/main/4", "primary main", "ann", "p@s/s", 4, false},
		{"rediss+sentinel://h:1,i:2/main/", "primary main", "", "", 0, true},
		{"redis+cluster://h", "h:6379", "", "", 0, false},
		{"redis+cluster://ann:p%40s%2Fs@h:1,[::1]:2,[::1]", "h:1", "ann", "p@s/s", 0, false},
		{"rediss+cluster://:pw@h:1,i:2/0", "h:1", "", "pw", 0, true},
	} {
		o, err := connect.RedisOptions(c.address, connect.TLSFiles{})
		if err != nil {
			t.Errorf("%s: %v", c.address, err)
			continue
		}
		if o.Addr != c.addr || o.Username != c.user || o.Password != c.password || o.DB != c.db || (o.TLSConfig != nil) != c.isTLS {
			t.Errorf("%s: addr %s, user %s, password %s, database %d, TLS %v", c.address, o.Addr, o.Username, o.Password, o.DB,
				o.TLSConfig != nil)
		}
	}
}

// TestRedisOptions_TLS_ServerAndClientVerified connects to a Redis that requires a client certificate.
func TestRedisOptions_TLS_ServerAndClientVerified(t *testing.T) {
	t.Parallel()
	ca, other := stacktest.TestCA(t), stacktest.TestCA(t)
	_, conn := redisWith(t)
	url, err := ca.SecureRedis(t.Context(), conn, "yes")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue("client")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, url string
		files     connect.TLSFiles
		fails     string
	}{
		{"all files", url, connect.TLSFiles{CA: ca.File, Cert: cert, Key: key}, ""},
		{"without verification", url + "?skip_verify=true", connect.TLSFiles{Cert: cert, Key: key}, ""},
		{"no authority", url, connect.TLSFiles{Cert: cert, Key: key}, "unknown authority"},
		{"another authority", url, connect.TLSFiles{CA: other.File, Cert: cert, Key: key}, "unknown authority"},
		{"no client certificate", url, connect.TLSFiles{CA: ca.File}, "certificate required"},
		{"another host", strings.Replace(url, "127.0.0.1", "127.0.0.2", 1), connect.TLSFiles{CA: ca.File, Cert: cert, Key: key}, "127.0.0.2"},
	} {
		expectError(t, c.name, ping(t, c.url, c.files), c.fails)
	}
}

// TestRedisOptions_ServerHangsInHandshake_DialEnds dials, as a worker does that guards its connections, a server that
// accepts connections and never answers, like one that is stopped. The dial ends, also without an end of its context.
func TestRedisOptions_ServerHangsInHandshake_DialEnds(t *testing.T) {
	stacktest.LongOnly(t)
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // the kernel accepts
	options, err := connect.RedisOptions("rediss://"+listener.Addr().String(), connect.TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := redis.NewDialer(options)(context.Background(), "tcp", options.Addr)
	if timeout, is := errors.AsType[net.Error](err); !is || !timeout.Timeout() {
		t.Errorf("dialed %v: %v, want a timeout", conn, err)
	}
}

// TestRedisOptions_UnixSocket_Connects connects over a unix socket.
func TestRedisOptions_UnixSocket_Connects(t *testing.T) {
	t.Parallel()
	program, err := stack.RedisProgram(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "holdfast-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "redis.sock")
	server, err := stack.StartProgram(t.Context(), stack.Program{
		Path: program, Args: []string{"--port", "0", "--unixsocket", socket, "--requirepass", "s3cret", "--save", ""},
		Ready: func(context.Context) error { _, err := os.Stat(socket); return err },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Kill() }) // it keeps no data
	if err := ping(t, "unix://:s3cret@"+socket, connect.TLSFiles{}); err != nil {
		t.Error(err)
	}
}
