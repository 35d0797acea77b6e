package connect

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"
)

// natsContext is a connection that `nats context save` of the NATS command has stored under a name, in
// $XDG_CONFIG_HOME/nats/context/<name>.json. The library of that command for them would make publisher a fifth larger,
// because it also has resolvers of secrets.
type natsContext struct {
	URL         string `json:"url"`
	Token       string `json:"token"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	CA          string `json:"ca"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	InboxPrefix string `json:"inbox_prefix"`

	Other map[string]any `json:",embed"` // what Holdfast does not read
}

// refusedMembers are members of a context without which the connection would be another one.
var refusedMembers = []string{"socks_proxy", "nsc", "user_jwt", "user_seed", "jetstream_domain", "jetstream_api_prefix",
	"tls_first", "windows_cert_store"}

// contextName matches the names that the NATS command gives to contexts, as far as they are safe in a path.
var contextName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)

// contextScheme matches a value that the NATS command reads elsewhere, such as env://NAME.
var contextScheme = regexp.MustCompile(`^(env|op|nsc|data|file)://`)

// FindURL returns the URL of NATS: address, the content of the file URLFile, or the URL of the context, whose login
// and certificates it then sets. No URL, login or certificate can be given besides a context. No error contains a
// secret.
func (f *NATSFiles) FindURL(address string) (string, error) {
	if f.Context == "" {
		return ReadURL("nats-url", address, f.URLFile)
	}
	if address != "" || *f != (NATSFiles{Context: f.Context}) {
		return "", errors.New("--context has the URL, the login and the certificates of NATS: " +
			"omit --nats-url and --nats-...-file (or their variables), or the context")
	}
	c, err := readContext(f.Context)
	if err != nil {
		return "", fmt.Errorf("--context %s: %w", f.Context, err)
	}
	*f = NATSFiles{
		CredsFile: c.Creds, NKeyFile: c.NKey, CAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key, inboxPrefix: c.InboxPrefix,
	}
	return c.address(), nil
}

// readContext reads a context, and expands the paths of its files.
func readContext(name string) (c natsContext, err error) {
	if !contextName.MatchString(name) {
		return c, errors.New("not the name of a context")
	}
	dir := os.Getenv("XDG_CONFIG_HOME")
	home, err := os.UserHomeDir()
	if dir == "" {
		if err != nil {
			return c, err
		}
		dir = filepath.Join(home, ".config")
	}
	path := filepath.Join(dir, "nats", "context", name+".json")
	content, err := os.ReadFile(path) //nolint:gosec // contextName matches no name that leads elsewhere
	if errors.Is(err, fs.ErrNotExist) {
		return c, errors.New("there is no such context: see nats context ls")
	}
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(content, &c); err != nil {
		return c, errors.New("its file is not JSON of the NATS command") // the error may quote a secret
	}
	if err := c.check(); err != nil {
		return c, err
	}
	for _, path := range []*string{&c.Creds, &c.NKey, &c.CA, &c.Cert, &c.Key} {
		*path = os.ExpandEnv(*path)
		if rest, inHome := strings.CutPrefix(*path, "~"); inHome {
			*path = home + rest
		}
	}
	return c, nil
}

// check returns an error if the context has what Holdfast does not read.
func (c *natsContext) check() error {
	for _, name := range refusedMembers {
		if value := c.Other[name]; value != nil && value != "" && value != false {
			return fmt.Errorf("it has %s, which Holdfast does not support", name)
		}
	}
	for name, value := range map[string]string{
		"token": c.Token, "user": c.User, "password": c.Password, "creds": c.Creds, "nkey": c.NKey, "ca": c.CA,
		"cert": c.Cert, "key": c.Key,
	} {
		if contextScheme.MatchString(value) {
			return fmt.Errorf("its %s is stored elsewhere, which Holdfast does not support", name)
		}
	}
	if c.URL == "" {
		return errors.New("it has no url")
	}
	return nil
}

// CheckReplies returns an error if the context that FindURL has read has inboxes to which workers send no outcomes.
func (f *NATSFiles) CheckReplies() error {
	if f.inboxPrefix != "" && !strings.HasPrefix(f.inboxPrefix+".", inboxPrefix) {
		return fmt.Errorf("its inbox_prefix is %s, and workers answer only inboxes that begin with %s: "+
			"set it to _INBOX or %[2]sNAME with nats context edit, and permit the user these inboxes", f.inboxPrefix, inboxPrefix)
	}
	return nil
}

// address returns the URLs of the servers with the user or the token of the context, unless a URL has its own.
func (c *natsContext) address() string {
	var login *url.Userinfo
	switch {
	case c.User != "":
		login = url.UserPassword(c.User, c.Password)
	case c.Token != "":
		login = url.User(c.Token)
	default:
		return c.URL
	}
	servers := strings.Split(c.URL, ",")
	for i, server := range servers {
		scheme, rest, hasScheme := strings.Cut(strings.TrimSpace(server), "://")
		if !hasScheme {
			scheme, rest = "nats", scheme
		}
		if !strings.Contains(rest, "@") {
			rest = login.String() + "@" + rest
		}
		servers[i] = scheme + "://" + rest
	}
	return strings.Join(servers, ",")
}
