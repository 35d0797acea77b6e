package connect_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"holdfast/internal/connect"
	"holdfast/internal/stack/stacktest"
)

// natsWith starts a NATS server with a configuration, and returns its address.
func natsWith(t *testing.T, config string, secure *tls.Config) (addr string) {
	t.Helper()
	o, err := server.ProcessConfigFile(write(t, config))
	if err != nil {
		t.Fatal(err)
	}
	o.NoLog = true
	if secure != nil {
		o.TLS, o.TLSConfig, o.TLSTimeout = true, secure, time.Minute.Seconds()
		o.TLSVerify = secure.ClientAuth == tls.RequireAndVerifyClientCert
	}
	s := stacktest.StartNATS(t, o)
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(s.Addr().(*net.TCPAddr).Port))
}

// connected connects with the options of files, and returns a new inbox.
func connected(t *testing.T, url string, files connect.NATSFiles) (inbox string, err error) {
	t.Helper()
	options, err := files.Options(url)
	if err != nil {
		return "", err
	}
	nc, err := nats.Connect(url, options...)
	if err != nil {
		return "", err
	}
	defer nc.Close()
	return nc.NewInbox(), nc.Flush()
}

// newUser returns a new nkey of a user.
func newUser(t *testing.T) (key nkeys.KeyPair, public string) {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = key.PublicKey(); err != nil {
		t.Fatal(err)
	}
	return key, public
}

// TestNATSFiles_NKey_LogsIn logs in by the seed of an nkey.
func TestNATSFiles_NKey_LogsIn(t *testing.T) {
	t.Parallel()
	key, public := newUser(t)
	stranger, _ := newUser(t)
	seed, _ := key.Seed()
	strange, _ := stranger.Seed()
	url := natsWith(t, fmt.Sprintf(`authorization { users: [ { nkey: %s, permissions: { subscribe: "_INBOX.%s.>" } } ] }`, public, public), nil)
	inbox, err := connected(t, url, connect.NATSFiles{NKeyFile: write(t, seed)})
	if err != nil || !strings.HasPrefix(inbox, "_INBOX."+public+".") {
		t.Errorf("inbox %s, error %v", inbox, err)
	}
	_, err = connected(t, url, connect.NATSFiles{NKeyFile: write(t, strange)})
	expectError(t, "another key", err, "Authorization Violation")
	_, err = connected(t, url, connect.NATSFiles{NKeyFile: write(t, "s3cret")})
	expectError(t, "no key", err, "--nats-nkey-file: ")
	_, err = connected(t, url, connect.NATSFiles{NKeyFile: "absent"})
	expectError(t, "no file", err, "--nats-nkey-file: ")
}

// TestNATSFiles_Creds_LogsIn logs in by a JWT. The inboxes begin with the name of the user.
func TestNATSFiles_Creds_LogsIn(t *testing.T) {
	t.Parallel()
	operator, _ := nkeys.CreateOperator()
	account, _ := nkeys.CreateAccount()
	operatorKey, _ := operator.PublicKey()
	accountKey, _ := account.PublicKey()
	user, public := newUser(t)
	seed, _ := user.Seed()
	sign := func(claims interface {
		Encode(nkeys.KeyPair) (string, error)
	}, by nkeys.KeyPair) string {
		t.Helper()
		token, err := claims.Encode(by)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	operatorJWT := sign(jwt.NewOperatorClaims(operatorKey), operator)
	accountJWT := sign(jwt.NewAccountClaims(accountKey), operator)
	claims := jwt.NewUserClaims(public)
	claims.Name = "holdfast_worker"
	creds, err := jwt.FormatUserConfig(sign(claims, account), seed)
	if err != nil {
		t.Fatal(err)
	}
	url := natsWith(t, fmt.Sprintf("operator: %s\nresolver: MEMORY\nresolver_preload: { %s: %s }\n", operatorJWT, accountKey, accountJWT), nil)
	inbox, err := connected(t, url, connect.NATSFiles{CredsFile: write(t, creds)})
	if err != nil || !strings.HasPrefix(inbox, "_INBOX.holdfast_worker.") {
		t.Errorf("inbox %s, error %v", inbox, err)
	}
	_, err = connected(t, url, connect.NATSFiles{})
	expectError(t, "no login", err, "Authorization Violation")
	_, err = connected(t, url, connect.NATSFiles{CredsFile: write(t, "s3cret")})
	expectError(t, "no creds", err, "--nats-creds-file: ")
	_, err = connected(t, url, connect.NATSFiles{CredsFile: write(t, creds[:len(creds)/2])})
	expectError(t, "half of the creds", err, "--nats-creds-file: ")
	_, err = connected(t, url, connect.NATSFiles{CredsFile: "absent"})
	expectError(t, "no file", err, "--nats-creds-file: ")
	_, err = connected(t, url, connect.NATSFiles{CredsFile: write(t, creds), NKeyFile: write(t, seed)})
	expectError(t, "two logins by file", err, "are both set: omit one of them")
	for _, login := range []string{"nats://ann:s3cret@" + url, "s3cret@" + url, url + ",nats://ann:s3cret@" + url} {
		_, err = connected(t, login, connect.NATSFiles{CredsFile: write(t, creds)})
		expectError(t, login, err, "the NATS URL contains a user")
	}
}

// TestNATSFiles_TLS_ServerAndClientVerified connects to a NATS that requires a client certificate.
func TestNATSFiles_TLS_ServerAndClientVerified(t *testing.T) {
	t.Parallel()
	ca, other := stacktest.TestCA(t), stacktest.TestCA(t)
	secure, err := ca.ServerConfig(tls.RequireAndVerifyClientCert)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue("client")
	if err != nil {
		t.Fatal(err)
	}
	url := natsWith(t, `authorization { user: ann, password: pw }`, secure)
	for _, c := range []struct {
		name  string
		files connect.NATSFiles
		want  string
	}{
		{"all files", connect.NATSFiles{CAFile: ca.File, CertFile: cert, KeyFile: key}, ""},
		{"no authority", connect.NATSFiles{CertFile: cert, KeyFile: key}, "unknown authority"},
		{"another authority", connect.NATSFiles{CAFile: other.File, CertFile: cert, KeyFile: key}, "unknown authority"},
		// In TLS 1.3 the server refuses after the client's handshake: the client reads why, or fails to write before.
		{"no client certificate", connect.NATSFiles{CAFile: ca.File}, "tls"},
		{"no key", connect.NATSFiles{CAFile: ca.File, CertFile: cert}, "--nats-cert-file and --nats-key-file belong together"},
	} {
		_, err := connected(t, "nats://ann:pw@"+url, c.files)
		expectError(t, c.name, err, c.want)
	}
	plain := natsWith(t, "", nil)
	_, err = connected(t, plain, connect.NATSFiles{CAFile: ca.File})
	expectError(t, "a server without TLS", err, "secure connection not available")
}

// TestNATSFiles_AuthorityAdded_ReconnectTrustsIt adds an authority to the file of a client that runs, and then makes it reconnect to a
// server with a certificate of that authority. The server still requires the client's certificate, of the first one.
func TestNATSFiles_AuthorityAdded_ReconnectTrustsIt(t *testing.T) {
	t.Parallel()
	ca, next := stacktest.TestCA(t), stacktest.TestCA(t)
	before, err := ca.ServerConfig(tls.RequireAndVerifyClientCert)
	stacktest.Must(t, err)
	after, err := next.ServerConfig(tls.RequireAndVerifyClientCert)
	stacktest.Must(t, err)
	after.ClientCAs = before.ClientCAs
	cert, key, err := ca.Issue("client")
	stacktest.Must(t, err)
	read := func(file string) []byte {
		t.Helper()
		content, err := os.ReadFile(file)
		stacktest.Must(t, err)
		return content
	}
	files := connect.NATSFiles{CAFile: write(t, read(ca.File)), CertFile: cert, KeyFile: key}
	url, proxy := stacktest.ProxyTo(t, "tls://"+natsWith(t, "", before))
	options, err := files.Options(url)
	stacktest.Must(t, err)
	ended := make(chan string, 2)
	nc, err := nats.Connect(url, append(options, nats.MaxReconnects(3), nats.ReconnectWait(time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ReconnectHandler(func(*nats.Conn) { ended <- "reconnected" }),
		nats.ClosedHandler(func(*nats.Conn) { ended <- "given up" }))...)
	stacktest.Must(t, err)
	defer nc.Close()
	stacktest.Must(t, os.WriteFile(files.CAFile, append(read(ca.File), read(next.File)...), 0o600))
	proxy.Target(natsWith(t, "", after))
	proxy.Cut(true)
	if how := <-ended; how != "reconnected" {
		t.Error("the client does not trust the added authority")
	}
}
