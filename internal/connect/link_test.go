package connect_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"

	"holdfast/internal/connect"
)

// TestLink_EachProtection_DescribedWithItsRisk describes connections within the machine and beyond it.
func TestLink_EachProtection_DescribedWithItsRisk(t *testing.T) {
	t.Parallel()
	far, near := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, &net.TCPAddr{IP: net.IPv6loopback}
	encrypted := &tls.ConnectionState{Version: tls.VersionTLS13}
	verified := &tls.ConnectionState{Version: tls.VersionTLS13, VerifiedChains: [][]*x509.Certificate{{}}}
	for _, c := range []struct {
		addr   net.Addr
		state  *tls.ConnectionState
		logins []string
		text   string
		risk   string
	}{
		{near, nil, nil, "not encrypted, within this machine; login: none", ""},
		{&net.UnixAddr{}, nil, []string{"", "password"}, "not encrypted, within this machine; login: password", ""},
		{far, nil, []string{"password"}, "not encrypted; login: password", "can be read on the network"},
		{far, encrypted, []string{"password"}, "encrypted, server not verified (TLS 1.3); login: password", "take the place of this one"},
		{far, verified, nil, "encrypted, server verified (TLS 1.3); login: none", "every program that reaches the server"},
		{far, verified, []string{"client certificate", "ACL user ann"},
			"encrypted, server verified (TLS 1.3); login: client certificate and ACL user ann", ""},
		{nil, nil, nil, "not encrypted; login: none", "can be read on the network"},
	} {
		l := connect.NewLink(c.addr, c.state, c.logins...)
		if l.String() != c.text || (l.Risk() == "") != (c.risk == "") || !strings.Contains(l.Risk(), c.risk) {
			t.Errorf("%q, risk %q; want %q, %q", l, l.Risk(), c.text, c.risk)
		}
	}
	l := connect.NewLink(far, encrypted, "password")
	l.VerifiedWithoutName()
	if want := "encrypted, server verified (TLS 1.3, without its host name); login: password"; l.String() != want || l.Risk() != "" {
		t.Errorf("%q, risk %q; want %q", l, l.Risk(), want)
	}
}
