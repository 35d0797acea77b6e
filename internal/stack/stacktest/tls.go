package stacktest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/stack"
)

// TLS reports whether restricted servers accept only encrypted connections: HOLDFAST_TEST_TLS=1. CI
// runs the tests of both programs so too.
func TLS() bool { return os.Getenv("HOLDFAST_TEST_TLS") != "" }

// CA is a certificate authority of tests.
type CA struct {
	File string // its certificate
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA returns a new authority with its files in dir.
func NewCA(dir string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &CA{File: filepath.Join(dir, "ca.pem"), dir: dir, key: key}
	cert := certificate("Holdfast test authority " + rand.Text())
	cert.IsCA, cert.BasicConstraintsValid, cert.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return ca, writePEM(ca.File, "CERTIFICATE", der, 0o644)
}

// Issue writes a certificate for servers on loopback and for clients, with its key, and returns the
// paths of both files. name is the common name.
func (ca *CA) Issue(name string) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	cert := certificate(name)
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert.IPAddresses, cert.DNSNames = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}
	der, err := x509.CreateCertificate(rand.Reader, cert, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	base := filepath.Join(ca.dir, name+"-"+rand.Text())
	certFile, keyFile = base+".pem", base+".key"
	return certFile, keyFile, errors.Join(
		writePEM(certFile, "CERTIFICATE", der, 0o644), writePEM(keyFile, "PRIVATE KEY", secret, 0o600))
}

func certificate(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
	}
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// TestCA returns a new authority for a test.
func TestCA(t testing.TB) *CA {
	t.Helper()
	ca, err := NewCA(t.TempDir())
	Must(t, err)
	return ca
}

// processCA is the authority of all restricted servers of this process. Clients without the file of
// an authority trust it too, also those in child processes.
var processCA = sync.OnceValues(func() (*CA, error) {
	dir, err := os.MkdirTemp("", "holdfast-ca-")
	if err != nil {
		return nil, err
	}
	ca, err := NewCA(dir)
	if err == nil {
		err = os.Setenv("SSL_CERT_FILE", ca.File)
	}
	return ca, err
})

// caOfRun returns the authority of restricted servers, nil when they have no TLS.
func caOfRun() (*CA, error) {
	if !TLS() {
		return nil, nil
	}
	return processCA()
}

// removeProcessCA removes the files of processCA.
func removeProcessCA() error {
	if !TLS() {
		return nil
	}
	ca, err := processCA()
	if err != nil {
		return err
	}
	return os.RemoveAll(ca.dir)
}

// ServerConfig returns the TLS configuration of a server. clients is whether it requires a client
// certificate of this authority, and verifies any that it gets.
func (ca *CA) ServerConfig(clients tls.ClientAuthType) (*tls.Config, error) {
	certFile, keyFile, err := ca.Issue("server")
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: clients, MinVersion: tls.VersionTLS12,
	}, nil
}

// SecureRedis makes the Redis of a connection accept only encrypted connections, and returns its URL.
// clients is yes, no or optional: whether it requires a client certificate.
func (ca *CA) SecureRedis(ctx context.Context, conn *redis.Conn, clients string) (url string, err error) {
	certFile, keyFile, err := ca.Issue("redis")
	if err != nil {
		return "", err
	}
	const attempts = 3
	ports, err := stack.QuietPorts(attempts)
	if err != nil {
		return "", err
	}
	var port int
	for _, port = range ports {
		err = conn.Do(ctx, "CONFIG", "SET", "tls-ca-cert-file", ca.File, "tls-cert-file", certFile, "tls-key-file", keyFile,
			"tls-auth-clients", clients, "tls-port", port).Err()
		if err == nil || !strings.Contains(err.Error(), "Unable to listen on this port") {
			break
		} // else another process took the port first, and nothing was changed
	}
	if err == nil {
		err = conn.ConfigSet(ctx, "port", "0").Err()
	}
	if err != nil {
		return "", fmt.Errorf("secure redis: %w", err)
	}
	return fmt.Sprintf("rediss://127.0.0.1:%d/0", port), nil
}

// SecurePostgres makes a Postgres accept only encrypted connections with a password, and returns its
// URL, with which clients verify it.
func (ca *CA) SecurePostgres(ctx context.Context, conn *pgx.Conn, address string) (url string, err error) {
	var data, hba string
	err = conn.QueryRow(ctx, "SELECT current_setting('data_directory'), current_setting('hba_file')").Scan(&data, &hba)
	if err != nil {
		return "", err
	}
	owner, err := os.Stat(data)
	if err != nil {
		return "", err
	}
	certFile, keyFile, err := ca.Issue("postgres")
	if err != nil {
		return "", err
	}
	for from, to := range map[string]string{certFile: "server.crt", keyFile: "server.key", ca.File: "root.crt"} {
		text, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		path, id := filepath.Join(data, to), owner.Sys().(*syscall.Stat_t)
		if err := errors.Join(os.WriteFile(path, text, 0o600), os.Chown(path, int(id.Uid), int(id.Gid))); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(hba, []byte("hostssl all all 127.0.0.1/32 scram-sha-256\n"), 0o600); err != nil {
		return "", err
	}
	for _, statement := range []string{"ALTER SYSTEM SET ssl_ca_file = 'root.crt'", "ALTER SYSTEM SET ssl = on",
		"SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return "", fmt.Errorf("%s: %w", statement, err)
		}
	}
	return strings.Replace(address, "sslmode=disable", "sslmode=verify-full&sslrootcert="+ca.File, 1), nil
}
