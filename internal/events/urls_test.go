package events

import (
	"errors"
	"strings"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// TestRedactedURL_EachForm_HidesPassword shows what is left of URLs of every kind, also of those that are written wrongly.
func TestRedactedURL_EachForm_HidesPassword(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"nats://127.0.0.1:4222":                                     "nats://127.0.0.1:4222",
		"nats://ann:s3cret@host:4222":                               "nats://ann:xxxxx@host:4222",
		"nats://s3cret@host":                                        "nats://xxxxx@host",
		"nats://a:1,nats://ann:s3cret@b:2, tls://s3cret@c":          "nats://a:1,nats://ann:xxxxx@b:2,tls://xxxxx@c",
		"nats://ann:s3cret@host:bad":                                "nats://ann:xxxxx@host:bad",
		"nats://ann:s3/cr@t%zz@host":                                "nats://ann:xxxxx@host",
		"redis://:s3cret@host/0":                                    "redis://:xxxxx@host/0",
		"rediss://ann@host/0":                                       "rediss://ann@host/0",
		"postgres://ann:s3cret@h1,h2:5433/db?sslmode=disable":       "postgres://ann:xxxxx@h1,h2:5433/db?sslmode=disable",
		"postgresql://h/db?user=ann&password=s3cret&sslmode=prefer": "postgresql://h/db?user=ann&password=xxxxx&sslmode=prefer",
		"postgres://h/db?sslPassword=s3cret":                        "postgres://h/db?sslPassword=xxxxx",
		"host=h user=ann password=s3cret":                           "(not a URL)",
		"s3cret@host":                                               "(not a URL)",
		"ann:s3cret@host,nats://b":                                  "(not a URL)",
		"":                                                          "(not a URL)",
	} {
		if got := RedactedURL(address); got != want || strings.Contains(got, "s3") {
			t.Errorf("%s is shown as %s, want %s", address, got, want)
		}
	}
}

// TestConnect_BadURL_ErrorOmitsPassword tries to connect with URLs that are wrong, and with one that is right
// to a place where nobody listens.
func TestConnect_BadURL_ErrorOmitsPassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"nats://ann:s3cret@host:bad", "nats://ann:s3cret@", "nats://ann:s3%zzcret@host", "nats://a,nats://ann:s3cret@[::1", "nats://ann:s3 cret@host",
	} {
		if _, err := Connect(address, "", t.Logf); !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "s3") {
			t.Errorf("connect to %s: %v", address, err)
		}
	}
	if _, err := Connect("nats://ann:s3cret@127.0.0.1:1", "", t.Logf); err == nil || strings.Contains(err.Error(), "s3") {
		t.Errorf("connect to where nobody listens: %v", err)
	}
}

// TestConnect_EachUser_InboxPrefix shows what inboxes begin with.
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
			t.Errorf("with the user %q an inbox is %s", user, got)
		}
	}
}
