package events

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"

	"github.com/nats-io/nats.go"
)

// PermissionError is the error of a request that NATS denies to a user. The server sends it to the
// connection, and the request itself gets no answer: without a PermissionError its caller would
// only see a timeout.
type PermissionError struct {
	User string // "" if it is not known
	Err  error  // from the server
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

// Unwrap returns the error from the server, a nats.ErrPermissionViolation.
func (e *PermissionError) Unwrap() error { return e.Err }

// OnRefusal calls refused, on another goroutine, when NATS denies something for lack of a
// permission. Other errors go to the error handler that the connection had before.
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

// userOf returns the user of a connection, "" if it has no password: a URL with only one word
// before the @ has a token.
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

// UntilRefused returns a context that ends when NATS denies something for lack of a permission.
// Refused returns the reason. The caller must call restore at the end.
func UntilRefused(ctx context.Context, nc *nats.Conn) (until context.Context, restore func()) {
	until, cancel := context.WithCancelCause(ctx)
	before := nc.ErrorHandler()
	OnRefusal(nc, func(refused *PermissionError) { cancel(refused) })
	return until, func() {
		nc.SetErrorHandler(before)
		cancel(nil)
	}
}

// Refused returns the *PermissionError that ended ctx, or err if there is none.
func Refused(ctx context.Context, err error) error {
	if refused, ok := errors.AsType[*PermissionError](context.Cause(ctx)); ok {
		return refused
	}
	return err
}
