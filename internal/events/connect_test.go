package events

import (
	"errors"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestConnect_BadURL_ErrorOmitsPassword connects to invalid URLs, and to a valid one without a
// server.
func TestConnect_BadURL_ErrorOmitsPassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"nats://ann:s3cret@host:bad", "nats://ann:s3cret@", "nats://ann:s3%zzcret@host", "nats://a,nats://ann:s3cret@[::1", "nats://ann:s3 cret@host",
		"nats://s3cret#token@host", "nats://s3cret/token@host", "nats://s3cret?token@host", "s3cret#token@host",
		"nats://a, tls://s3cret/@b", "nats://ann:12/s3cret@host", "ws://s3cret/path?query#token@host",
	} {
		if _, err := Connect(address, "", t.Logf); !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "s3") {
			t.Errorf("connect to %s: %v", address, err)
		}
	}
	for _, address := range []string{
		"nats://ann:s3cret@127.0.0.1:1", "nats://ann:s3@cret@127.0.0.1:1", "ws://s3%23%2F%3F@127.0.0.1:1/a%40b",
	} {
		if _, err := Connect(address, "", t.Logf); err == nil || errors.Is(err, ErrURL) || strings.Contains(err.Error(), "s3") {
			t.Errorf("connect to %s without a server: %v", address, err)
		}
	}
}

// TestConnect_EachUser_InboxPrefix checks the inbox prefix of each kind of user.
func TestConnect_EachUser_InboxPrefix(t *testing.T) {
	t.Parallel()
	at := strings.TrimPrefix(stacktest.Shared().NATSURL, "nats://")
	for user, want := range map[string]string{
		"": "_INBOX.", "ann:x@": "_INBOX.ann.", "token@": "_INBOX.", "a.b:x@": "_INBOX.", "a*:x@": "_INBOX.", "%3E:x@": "_INBOX.",
	} {
		nc, err := Connect("nats://"+user+at, "", t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if got := nc.NewInbox(); !strings.HasPrefix(got, want) || strings.Count(got, ".") != strings.Count(want, ".") {
			t.Errorf("the inbox of user %q is %s", user, got)
		}
	}
}
