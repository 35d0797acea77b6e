package events

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"

	"github.com/nats-io/nats.go"
)

// PermissionError says what NATS does not permit to a user. The server says so beside the request, which gets no
// answer: without this, all that a caller sees is that its time is over.
type PermissionError struct {
	User string // "" when it is not known
	Err  error  // as the server says it
}

var violation = regexp.MustCompile(`for (Publish|Subscription) to "([^"]+)"`)

func (e *PermissionError) Error() string {
	user := "this user"
	if e.User != "" {
		user = fmt.Sprintf("user %q", e.User)
	}
	what := violation.FindStringSubmatch(e.Err.Error())
	if what == nil {
		return fmt.Sprintf("permissions violation: NATS refuses %s: %v", user, e.Err)
	}
	verb := map[string]string{"Publish": "publish", "Subscription": "subscribe"}[what[1]]
	return fmt.Sprintf("permissions violation: %s may not %s to %q on NATS "+
		"(deployments/nats/accounts.conf has what each program needs)", user, verb, what[2])
}

// Unwrap returns what the server says, a nats.ErrPermissionViolation.
func (e *PermissionError) Unwrap() error { return e.Err }

// OnRefusal calls refused, from another goroutine, when NATS refuses something for lack of a permission. Other errors
// go where they went before.
func OnRefusal(nc *nats.Conn, refused func(*PermissionError)) {
	before := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		switch {
		case errors.Is(err, nats.ErrPermissionViolation):
			refused(&PermissionError{userOf(nc), err})
		case before != nil:
			before(nc, sub, err)
		}
	})
}

// userOf is the user by whose password nc is connected, "" when there is none. What is alone before the @ is a token.
func userOf(nc *nats.Conn) string {
	connected, err := url.Parse(nc.ConnectedUrl())
	if err != nil {
		return ""
	}
	if _, isUser := connected.User.Password(); !isUser {
		return ""
	}
	return connected.User.Username()
}

// UntilRefused returns a context that ends when NATS refuses something for lack of a permission, until restore is
// called. Refused has the reason then.
func UntilRefused(ctx context.Context, nc *nats.Conn) (until context.Context, restore func()) {
	until, cancel := context.WithCancelCause(ctx)
	before := nc.ErrorHandler()
	OnRefusal(nc, func(refused *PermissionError) { cancel(refused) })
	return until, func() {
		nc.SetErrorHandler(before)
		cancel(nil)
	}
}

// Refused returns the *PermissionError by which ctx has ended, else err.
func Refused(ctx context.Context, err error) error {
	if refused, ok := errors.AsType[*PermissionError](context.Cause(ctx)); ok {
		return refused
	}
	return err
}
