package connect_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/connect"
)

// TestReadURL_FlagBesideVariable_FlagIsRead gives a URL by a flag and a file by a variable, the other way round, and
// both by variables.
func TestReadURL_FlagBesideVariable_FlagIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("redis://in-file:1"), 0o600); err != nil {
		t.Fatal(err)
	}
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
	write := func(content string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const url = "redis://ann:s3cret@127.0.0.1:1"
	for _, c := range []struct{ name, url, file, want, fails string }{
		{"neither", "", "", "", ""},
		{"the URL", url, "", url, ""},
		{"a file", "", write(url), url, ""},
		{"a file with a line feed", "", write(url + "\r\n"), url, ""},
		{"both", url, write(url), "", "--redis-url and --redis-url-file (or their variables) are both set"},
		{"an empty file", "", write("\n"), "", "must contain one line with a URL"},
		{"two lines", "", write(url + "\n" + url), "", "must contain one line with a URL"},
		{"no file", "", filepath.Join(t.TempDir(), "absent"), "", "--redis-url-file: open"},
	} {
		found, err := connect.ReadURL("redis-url", c.url, c.file)
		switch {
		case c.fails == "" && (err != nil || found != c.want):
			t.Errorf("%s: %q, %v; want %q", c.name, found, err, c.want)
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "s3cret")):
			t.Errorf("%s: %v, want %q", c.name, err, c.fails)
		}
	}
}
