package connect_test

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/connect"
	"holdfast/internal/stack/stacktest"
)

// saveContext writes a context as nats context save does, for the rest of the test.
func saveContext(t *testing.T, name, members string) {
	t.Helper()
	path := filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "nats", "context", name+".json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"description":"","socks_proxy":"","nsc":"","tls_first":false,"windows_ca_certs_match":null,` + members + `}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestContext_EachLogin_Connects connects by contexts with a password, a token, an nkey and TLS. The inboxes begin
// with the prefix of the context.
func TestContext_EachLogin_Connects(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("FILES", t.TempDir())
	ca := stacktest.TestCA(t)
	config, err := ca.ServerConfig(tls.NoClientCert)
	if err != nil {
		t.Fatal(err)
	}
	key, public := newUser(t)
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("FILES"), "seed"), seed, 0o600); err != nil {
		t.Fatal(err)
	}
	users := natsWith(t,
		fmt.Sprintf(`authorization { users: [{user: ann, password: "s3cret @:/"}, {nkey: %s}] }`, public), nil)
	token := natsWith(t, `authorization { token: "s3cret" }`, config)
	for name, c := range map[string]struct{ members, inbox string }{
		"password": {
			`"url":"127.0.0.1:1,nats://` + users + `","user":"ann","password":"s3cret @:/","inbox_prefix":"_INBOX.team"`,
			"_INBOX.team.",
		},
		"nkey": {`"url":"nats://` + users + `","nkey":"$FILES/seed"`, "_INBOX." + public + "."},
		"token": {
			`"url":"nats://` + token + `","token":"s3cret","ca":"` + ca.File + `","inbox_prefix":"_INBOX"`, "_INBOX.",
		},
	} {
		saveContext(t, name, c.members)
		files := connect.NATSFiles{Context: name}
		url, err := files.FindURL("")
		if err != nil {
			t.Fatal(err)
		}
		inbox, err := connected(t, url, files)
		if err != nil || !strings.HasPrefix(inbox, c.inbox) {
			t.Errorf("%s: inbox %s, want %s...: %v", name, inbox, c.inbox, err)
		}
	}
}

// TestContext_CannotBeUsed_SaysWhy reads contexts that do not exist, or that have more than Holdfast reads.
func TestContext_CannotBeUsed_SaysWhy(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, c := range []struct{ name, members, want string }{
		{"proxied", `"url":"a:1","user_seed":"s3cret"`, "it has user_seed, which Holdfast does not support"},
		{"elsewhere", `"url":"a:1","user":"ann","password":"op://s3cret"`, "its password is stored elsewhere"},
		{"empty", `"user":"s3cret"`, "it has no url"},
		{"broken", `"url":s3cret`, "its file is not JSON"},
		{"../connect/absent", "", "not the name of a context"},
		{"absent", "", "there is no such context: see nats context ls"},
	} {
		if c.members != "" {
			saveContext(t, c.name, c.members)
		}
		_, err := (&connect.NATSFiles{Context: c.name}).FindURL("")
		expectError(t, c.name, err, c.want)
	}
	saveContext(t, "good", `"url":"a:1"`)
	for name, files := range map[string]*connect.NATSFiles{
		"--nats-url": {}, "a login": {CredsFile: "f"}, "a certificate": {CAFile: "f"}, "a file with the URL": {URLFile: "f"},
	} {
		files.Context = "good"
		url := ""
		if name == "--nats-url" {
			url = "nats://b:2"
		}
		_, err := files.FindURL(url)
		expectError(t, "besides "+name, err, "omit --nats-url and --nats-...-file")
	}
}

// TestCheckReplies_OtherInboxes_SaysWhatToSet reads contexts with inboxes that workers answer, and that they do not answer.
func TestCheckReplies_OtherInboxes_SaysWhatToSet(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for prefix, text := range map[string]string{
		"": "", "_INBOX": "", "_INBOX.team": "",
		"_INBOXES.team": "workers answer only inboxes that begin with _INBOX.: set it to _INBOX or _INBOX.NAME",
	} {
		saveContext(t, "inboxes", `"url":"a:1","inbox_prefix":"`+prefix+`"`)
		files := connect.NATSFiles{Context: "inboxes"}
		if url, err := files.FindURL(""); err != nil || url != "a:1" {
			t.Errorf("%q: URL %q, error %v", prefix, url, err)
		}
		if err := files.CheckReplies(); err != nil != (text != "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%q: error %v, want %q", prefix, err, text)
		}
	}
}
