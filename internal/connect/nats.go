package connect

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
)

// NATSFiles are the settings of both programs that name files for NATS. The tags are those of their
// flags.
type NATSFiles struct {
	URLFile   string `name:"nats-url-file" env:"HOLDFAST_NATS_URL_FILE" placeholder:"FILE" help:"File that contains the NATS URL, such as a mounted secret."`
	CredsFile string `name:"nats-creds-file" env:"HOLDFAST_NATS_CREDS_FILE" placeholder:"FILE" help:"Login to NATS: file with a JWT and its key, as nsc writes it."`
	NKeyFile  string `name:"nats-nkey-file" env:"HOLDFAST_NATS_NKEY_FILE" placeholder:"FILE" help:"Login to NATS: file with the seed of an nkey."`
	CAFile    string `name:"nats-ca-file" env:"HOLDFAST_NATS_CA_FILE" placeholder:"FILE" help:"Certificates in PEM form that NATS' certificate is verified against, instead of the system's. Requires TLS."`
	CertFile  string `name:"nats-cert-file" env:"HOLDFAST_NATS_CERT_FILE" placeholder:"FILE" help:"Client certificate for NATS, in PEM form. Requires TLS."`
	KeyFile   string `name:"nats-key-file" env:"HOLDFAST_NATS_KEY_FILE" placeholder:"FILE" help:"Key of the client certificate for NATS."`
	Context   string `name:"context" env:"HOLDFAST_NATS_CONTEXT" placeholder:"NAME" help:"URL, login and certificates of NATS from a context that nats context save has stored, instead of the flags above."`

	inboxPrefix string // of the context; "" for that of the user
}

// userToken matches names of users that are allowed in a subject.
var userToken = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// inboxPrefix begins the inboxes of all users.
const inboxPrefix = "_INBOX."

// Options returns the options of a connection to the servers in address, several separated by
// commas. With a JWT the inboxes begin with _INBOX.<name of the user>, with an nkey with
// _INBOX.<public key>. Logins, certificates and authorities are read again at each reconnect.
func (f *NATSFiles) Options(address string) (options []nats.Option, err error) {
	config, err := TLSFiles{f.CAFile, f.CertFile, f.KeyFile}.config("--nats")
	if err != nil {
		return nil, err
	}
	if config != nil {
		options = append(options, nats.Secure(config))
	}
	if f.CAFile != "" {
		options = append(options, nats.RootCAs(f.CAFile)) // instead of those in config, which were read once
	}
	login, err := f.login(address)
	options = append(options, login...)
	if f.inboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(f.inboxPrefix))
	}
	return options, err
}

// login returns the options for a login by a file.
func (f *NATSFiles) login(address string) ([]nats.Option, error) {
	switch {
	case f.CredsFile == "" && f.NKeyFile == "":
		return nil, nil
	case f.CredsFile != "" && f.NKeyFile != "":
		return nil, errors.New("--nats-creds-file and --nats-nkey-file are both set: omit one of them")
	case hasUser(address):
		return nil, errors.New("the NATS URL contains a user and a file has another login: " +
			"omit the user, or --nats-creds-file and --nats-nkey-file")
	case f.NKeyFile != "":
		return nkeyLogin(f.NKeyFile)
	default:
		return credsLogin(f.CredsFile)
	}
}

// hasUser reports whether one of the URLs contains a user or a token.
func hasUser(address string) bool {
	for one := range strings.SplitSeq(address, ",") {
		_, rest, hasScheme := strings.Cut(one, "://")
		if !hasScheme {
			rest = one
		}
		if strings.Contains(rest, "@") {
			return true
		}
	}
	return false
}

func nkeyLogin(file string) ([]nats.Option, error) {
	option, err := nats.NkeyOptionFromSeed(file)
	if err != nil {
		return nil, fmt.Errorf("--nats-nkey-file: %w", err)
	}
	var read nats.Options
	if err := option(&read); err != nil {
		return nil, fmt.Errorf("--nats-nkey-file: %w", err)
	}
	return []nats.Option{option, nats.CustomInboxPrefix(inboxPrefix + read.Nkey)}, nil
}

func credsLogin(file string) ([]nats.Option, error) {
	if _, err := os.Stat(file); err != nil {
		return nil, fmt.Errorf("--nats-creds-file: %w", err)
	}
	option := nats.UserCredentials(file)
	var read nats.Options
	if err := option(&read); err != nil {
		return nil, fmt.Errorf("--nats-creds-file: %w", err)
	}
	token, err := read.UserJWT()
	if err == nil {
		_, err = read.SignatureCB([]byte("test")) // the file also has a valid key
	}
	if err != nil {
		return nil, fmt.Errorf("--nats-creds-file: %s: %w", file, err)
	}
	options := []nats.Option{option}
	if name := nameIn(token); userToken.MatchString(name) {
		options = append(options, nats.CustomInboxPrefix(inboxPrefix+name))
	}
	return options, nil
}

// nameIn returns the name of the user in a JWT, "" when it has none. It verifies nothing: the server
// does.
func nameIn(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return ""
	}
	return claims.Name
}
