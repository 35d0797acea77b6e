package connect_test

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/connect"
	"holdfast/internal/stack/stacktest"
)

// TestTLSFiles_CertificateRenewed_NextConnectionHasIt replaces the files of a client's certificate by one that the server
// accepts, as a renewal does. The options stay the same.
func TestTLSFiles_CertificateRenewed_NextConnectionHasIt(t *testing.T) {
	t.Parallel()
	ca := stacktest.TestCA(t)
	secure, err := ca.ServerConfig(tls.RequireAndVerifyClientCert)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := connect.TLSFiles{CA: ca.File, Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	write := func(by *stacktest.CA) {
		t.Helper()
		cert, key, err := by.Issue("client")
		if err != nil {
			t.Fatal(err)
		}
		for from, to := range map[string]string{cert: files.Cert, key: files.Key} {
			content, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(to, content, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	write(stacktest.TestCA(t)) // an authority that the server does not know
	listener, err := tls.Listen("tcp", "127.0.0.1:0", secure)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // it accepts no more
	options, err := connect.RedisOptions("rediss://"+listener.Addr().String(), files)
	if err != nil {
		t.Fatal(err)
	}
	accepted := func() bool {
		t.Helper()
		shaken := make(chan error, 1)
		go func() {
			conn, err := listener.Accept()
			if err == nil {
				err = conn.(*tls.Conn).HandshakeContext(context.Background())
				_ = conn.Close() // the handshake is all
			}
			shaken <- err
		}()
		conn, err := redis.NewDialer(options)(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err) // in TLS 1.3 the client has done its part before the server refuses
		}
		_ = conn.Close() // only the answer of the server counts
		return <-shaken == nil
	}
	if accepted() {
		t.Error("the server accepts a certificate of an unknown authority")
	}
	write(ca)
	if !accepted() {
		t.Error("the renewed certificate is not used")
	}
}

// TestReadURL_FlagBesideVariable_FlagIsRead gives a URL by a flag and a file by a variable, the other way round, and
// both by variables.
func TestReadURL_FlagBesideVariable_FlagIsRead(t *testing.T) {
	path := write(t, "redis://in-file:1")
	t.Setenv("HOLDFAST_REDIS_URL_FILE", path)
	if found, err := connect.ReadURL("redis-url", "redis://flag:1", path); found != "redis://flag:1" {
		t.Errorf("the URL by a flag: %q, %v", found, err)
	}
	t.Setenv("HOLDFAST_REDIS_URL", "redis://variable:1")
	if found, err := connect.ReadURL("redis-url", "redis://variable:1", path); err == nil {
		t.Errorf("both by variables: %q", found)
	}
	t.Setenv("HOLDFAST_REDIS_URL_FILE", "")
	if found, err := connect.ReadURL("redis-url", "redis://variable:1", path); found != "redis://in-file:1" {
		t.Errorf("the file by a flag: %q, %v", found, err)
	}
}

// TestReadURL_URLAndFile_OneIsRead gives a URL, a file, both and neither.
func TestReadURL_URLAndFile_OneIsRead(t *testing.T) {
	t.Parallel()
	const url = "redis://ann:s3cret@127.0.0.1:1"
	for _, c := range []struct{ name, url, file, want, fails string }{
		{"neither", "", "", "", ""},
		{"the URL", url, "", url, ""},
		{"a file", "", write(t, url), url, ""},
		{"a file with a line feed", "", write(t, url+"\r\n"), url, ""},
		{"both", url, write(t, url), "", "--redis-url and --redis-url-file (or their variables) are both set"},
		{"an empty file", "", write(t, "\n"), "", "must contain one line with a URL"},
		{"two lines", "", write(t, url+"\n"+url), "", "must contain one line with a URL"},
		{"no file", "", filepath.Join(t.TempDir(), "absent"), "", "--redis-url-file: open"},
	} {
		found, err := connect.ReadURL("redis-url", c.url, c.file)
		if expectError(t, c.name, err, c.fails); err == nil && found != c.want {
			t.Errorf("%s: %q, want %q", c.name, found, c.want)
		}
	}
}
