package events

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// ErrURL is returned for a NATS URL that cannot be read, or in which a part of a password or token would be taken for a
// host. It does not quote the URL, which may contain a password.
var ErrURL = errors.New("not a NATS URL: want nats://[user:password@]host:port, several separated by commas; " +
	"percent-encode special characters in the password")

var (
	urlBegins = regexp.MustCompile(`(?i)(?:^|,)\s*[a-z][a-z0-9+.-]*://`)
	secretIn  = regexp.MustCompile(`(?i)([?&][^=&]*pass[^=&]*=)[^&]*`)
	userToken = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	// atAfterHost matches a URL with an @ in its path, query or fragment: then its host begins a password or a token.
	atAfterHost = regexp.MustCompile(`://[^/?#]*[/?#].*@`)
)

// schemes are those of the URLs that nats.go connects to.
var schemes = []string{"nats", "tls", "ws", "wss"}

// hidden replaces a secret.
const hidden = "xxxxx"

// RedactedURL returns the URL of a server of any kind, or several separated by commas, without
// passwords and tokens. It returns nothing of a text that is not a URL, and hides too much rather
// than too little of a malformed one.
func RedactedURL(address string) string {
	begins := urlBegins.FindAllStringIndex(address, -1)
	if len(begins) == 0 || begins[0][0] != 0 {
		return "(not a URL)"
	}
	parts := make([]string, len(begins))
	for i, begin := range begins {
		end := len(address)
		if i+1 < len(begins) {
			end = begins[i+1][0]
		}
		scheme := strings.TrimLeft(address[begin[0]:begin[1]], ", ")
		parts[i] = scheme + redactedRest(scheme, address[begin[1]:end])
	}
	return strings.Join(parts, ",")
}

// redactedRest redacts what follows the scheme of a URL. All before the last @ may be part of a
// password.
func redactedRest(scheme, rest string) string {
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		user, _, hasPassword := strings.Cut(rest[:at], ":")
		switch {
		case hasPassword:
			user += ":" + hidden
		case !strings.HasPrefix(scheme, "redis") && !strings.HasPrefix(scheme, "postgres"):
			user = hidden // in NATS this is a token
		}
		rest = user + rest[at:]
	}
	return secretIn.ReplaceAllString(rest, "${1}"+hidden)
}

// inboxOf validates a NATS URL and returns the prefix of the inboxes of its user, _INBOX.<user>.
// With it, permissions can keep users from reading each other's replies. The prefix is "" for a URL
// without a user, or with a user name that is not allowed in a subject.
func inboxOf(address string) (prefix string, err error) {
	for i, one := range strings.Split(withScheme(address), ",") {
		parsed, err := url.Parse(one)
		if err != nil || parsed.Hostname() == "" || !slices.Contains(schemes, strings.ToLower(parsed.Scheme)) ||
			atAfterHost.MatchString(one) {
			return "", fmt.Errorf("%w (number %d)", ErrURL, i+1)
		}
		if _, isUser := parsed.User.Password(); isUser && prefix == "" && userToken.MatchString(parsed.User.Username()) {
			prefix = inboxPrefix + parsed.User.Username()
		}
	}
	return prefix, nil
}

// withScheme adds the scheme to NATS URLs that have none.
func withScheme(address string) string {
	all := strings.Split(address, ",")
	for i, one := range all {
		if all[i] = strings.TrimSpace(one); !strings.Contains(one, "://") {
			all[i] = "nats://" + all[i]
		}
	}
	return strings.Join(all, ",")
}
