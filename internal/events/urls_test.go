package events

import (
	"strings"
	"testing"
)

// TestRedactedURL_EachForm_HidesPassword redacts URLs of every kind, also malformed ones.
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
			t.Errorf("%s is redacted as %s, want %s", address, got, want)
		}
	}
}
