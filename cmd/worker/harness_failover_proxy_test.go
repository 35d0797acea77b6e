package main

import (
	"net/url"
	"testing"

	"holdfast/internal/stack/stacktest"
)

// failoverProxy is an address that leads first to one Redis and then to another, as after a failover.
type failoverProxy struct{ *stacktest.Proxy }

// newFailoverProxy returns a proxy to the server of a Redis URL, and the URL of the proxy.
func newFailoverProxy(t testing.TB, redisURL string) (p *failoverProxy, proxyURL string) {
	t.Helper()
	proxy, err := stacktest.NewProxy(redisHost(t, redisURL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	return &failoverProxy{proxy}, "redis://" + proxy.Addr() + "/0"
}

// switchTo directs new connections to another server, and cuts the present ones.
func (p *failoverProxy) switchTo(t testing.TB, redisURL string) {
	t.Helper()
	p.Target(redisHost(t, redisURL))
	p.Cut(false)
}

func redisHost(t testing.TB, redisURL string) string {
	t.Helper()
	parsed, err := url.Parse(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Host
}
