package events

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestPermissionError_NamesUserAndSubject(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ user, text, want string }{
		{"holdfast_booking", `Permissions Violation for Publish to "holdfast.in.x"`, `permissions violation: user "holdfast_booking" may not publish to "holdfast.in.x" on NATS`},
		{"", `Permissions Violation for Subscription to "_INBOX.x"`, `permissions violation: this user may not subscribe to "_INBOX.x" on NATS`},
		{"ann", `something new`, `permissions violation: NATS refuses user "ann": nats: permissions violation: something new`},
	} {
		err := &PermissionError{c.user, fmt.Errorf("%w: %s", nats.ErrPermissionViolation, c.text)}
		if !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q, want %q", err, c.want)
		}
	}
}
