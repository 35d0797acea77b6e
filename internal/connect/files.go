package connect

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

// ReadURL returns the URL of a server: url, or the content of file without the white space around
// it. name is the name of the flag of the URL; that of the file ends with -file. When both are set, what
// was given by a flag comes before what a variable has; otherwise it returns an error. It returns "" when
// both are empty.
func ReadURL(name, url, file string) (string, error) {
	variable := "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	byFlag, fileByFlag := url != os.Getenv(variable), file != os.Getenv(variable+"_FILE")
	switch {
	case file == "", url != "" && byFlag && !fileByFlag:
		return url, nil
	case url != "" && byFlag == fileByFlag:
		return "", fmt.Errorf("--%s and --%s-file (or their variables) are both set: omit one of them", name, name)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--%s-file: %w", name, err)
	}
	found := strings.TrimSpace(string(content))
	if found == "" || strings.ContainsAny(found, "\r\n") {
		return "", fmt.Errorf("--%s-file: %s must contain one line with a URL", name, file)
	}
	return found, nil
}

// TLSFiles are the files of the TLS connections to one kind of server, each empty for none.
type TLSFiles struct {
	CA        string // certificates of the authorities that the server's certificate is verified against
	Cert, Key string // the client's certificate and its key
}

// config returns the configuration of TLS connections. prefix begins the names of the flags, such as
// --redis in --redis-ca-file. The client's certificate is read again for each connection, so a
// renewed one needs no restart; the authorities are those of now. It returns nil when no file is given.
func (f TLSFiles) config(prefix string) (*tls.Config, error) {
	if f == (TLSFiles{}) {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		certificates, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("%s-ca-file: %w", prefix, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(certificates) {
			return nil, fmt.Errorf("%s-ca-file: %s contains no certificate in PEM form", prefix, f.CA)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, fmt.Errorf("%s-cert-file and %s-key-file belong together: give both or none", prefix, prefix)
	}
	if f.Cert == "" {
		return config, nil
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("%s-cert-file, %s-key-file: %w", prefix, prefix, err)
		}
		return &pair, nil
	}
	if _, err := config.GetClientCertificate(nil); err != nil {
		return nil, err
	}
	return config, nil
}
