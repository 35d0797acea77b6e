package events

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// ErrURL says that the URL of NATS cannot be read. What is wrong with it is not told: it may have
// a password in it.
var ErrURL = errors.New("not a NATS URL: want nats://[user:password@]host:port, several separated by commas; what is special in a password is percent-encoded")

var (
	urlBegins = regexp.MustCompile(`(?i)(?:^|,)\s*[a-z][a-z0-9+.-]*://`)
	secretIn  = regexp.MustCompile(`(?i)([?&][^=&]*pass[^=&]*=)[^&]*`)
	userToken = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
)

// hidden stands for what must not be shown.
const hidden = "xxxxx"

// RedactedURL is the URL of a server, of whichever kind, or several separated by commas, without
// passwords and tokens. It repeats nothing of what is not a URL, and rather too little of one that
// is not written as it should be.
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

// redactedRest is what follows the scheme of a URL. All before its last @ may belong to a password.
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

// inboxOf checks the URL of NATS and returns what the inboxes of its user begin with: _INBOX.<user>,
// so that permissions can keep users from hearing each other's answers; "" = nothing of its own,
// for a URL without a user, or with one that cannot stand in a subject.
func inboxOf(address string) (prefix string, err error) {
	for i, one := range strings.Split(withScheme(address), ",") {
		parsed, err := url.Parse(one)
		if err != nil || parsed.Hostname() == "" {
			return "", fmt.Errorf("%w (number %d)", ErrURL, i+1)
		}
		if _, isUser := parsed.User.Password(); isUser && prefix == "" && userToken.MatchString(parsed.User.Username()) {
			prefix = inboxPrefix + parsed.User.Username()
		}
	}
	return prefix, nil
}

// withScheme returns URLs of NATS with the scheme that may be left out.
func withScheme(address string) string {
	all := strings.Split(address, ",")
	for i, one := range all {
		if all[i] = strings.TrimSpace(one); !strings.Contains(one, "://") {
			all[i] = "nats://" + all[i]
		}
	}
	return strings.Join(all, ",")
}
