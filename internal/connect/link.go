package connect

import (
	"cmp"
	"crypto/tls"
	"net"
	"slices"
	"strings"
)

// Link describes how the connection to a server is protected.
type Link struct {
	Encrypted bool   `json:"encrypted"`
	Verified  bool   `json:"verified"` // the server's certificate was verified
	Login     string `json:"login"`    // "none", or the logins joined by " and "
	local     bool   // it does not leave the machine
	detail    string // version of TLS, and how far the certificate was verified
}

// The logins of a Link. The login of an ACL user ends with its name.
const (
	LoginNone        = "none"
	LoginPassword    = "password"
	LoginToken       = "token"
	LoginACLUser     = "ACL user "
	LoginCertificate = "client certificate"
	LoginCreds       = "creds"
	LoginNKey        = "nkey"
)

// NewLink describes a connection to addr whose client gave the logins, of which empty ones do not
// count. state is nil without TLS.
func NewLink(addr net.Addr, state *tls.ConnectionState, logins ...string) *Link {
	given := slices.DeleteFunc(slices.Clone(logins), func(login string) bool { return login == "" })
	l := &Link{Login: cmp.Or(strings.Join(given, " and "), LoginNone), local: isLocal(addr)}
	if state != nil {
		l.Encrypted, l.Verified, l.detail = true, len(state.VerifiedChains) > 0, tls.VersionName(state.Version)
	}
	return l
}

// LinkOf describes conn as NewLink does.
func LinkOf(conn net.Conn, logins ...string) *Link {
	if secure, is := conn.(*tls.Conn); is {
		state := secure.ConnectionState()
		return NewLink(conn.RemoteAddr(), &state, logins...)
	}
	return NewLink(conn.RemoteAddr(), nil, logins...)
}

// VerifiedWithoutName notes that the authority of the server's certificate was verified, and not its
// host name.
func (l *Link) VerifiedWithoutName() {
	l.Verified = true
	l.detail += ", without its host name"
}

func isLocal(addr net.Addr) bool {
	switch a := addr.(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	}
	return false
}

// String describes the link for operators.
func (l *Link) String() string {
	text := "not encrypted"
	switch {
	case l.Verified:
		text = "encrypted, server verified (" + l.detail + ")"
	case l.Encrypted:
		text = "encrypted, server not verified (" + l.detail + ")"
	case l.local:
		text = "not encrypted, within this machine"
	}
	return text + "; login: " + l.Login
}

// Risk returns what an attacker could do on this link, "" when it is protected or stays within this
// machine.
func (l *Link) Risk() string {
	switch {
	case l.local:
		return ""
	case !l.Encrypted:
		return "passwords and personal data can be read on the network, and answers can be altered"
	case !l.Verified:
		return "another server can take the place of this one, and receives passwords and personal data"
	case l.Login == LoginNone:
		return "every program that reaches the server can change its data"
	}
	return ""
}
