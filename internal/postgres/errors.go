package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATE classes and codes that callers distinguish.
const (
	classDataException        = "22"
	classConstraintViolation  = "23"
	codeInsufficientPrivilege = "42501"
)

// Error is an error of Postgres or of a connection to it. It has the text of the error that it
// wraps.
type Error struct{ err error }

// WrapError returns err as an *Error if pgx reports it: an error that Postgres sends, or one of a
// connection. It returns all others unchanged, nil too.
func WrapError(err error) error {
	var refused *pgconn.PgError
	var unconnected *pgconn.ConnectError
	var unsent interface {
		error
		SafeToRetry() bool
	}
	if errors.As(err, &refused) || errors.As(err, &unconnected) || errors.As(err, &unsent) {
		return &Error{err}
	}
	return err
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Server returns the name of the server.
func (*Error) Server() string { return "postgres" }

// Rejected reports whether Postgres rejected the data of a statement: a data exception or a
// violated constraint. The same statement with other data could succeed.
func (e *Error) Rejected() bool {
	code := e.code()
	return len(code) == 5 && (code[:2] == classDataException || code[:2] == classConstraintViolation)
}

// Denied returns the message of Postgres when the role lacks a privilege, "" for other errors.
func (e *Error) Denied() string {
	if refused, found := errors.AsType[*pgconn.PgError](e.err); found && refused.Code == codeInsufficientPrivilege {
		return refused.Message
	}
	return ""
}

// code returns the SQLSTATE code, "" for an error that Postgres has not sent.
func (e *Error) code() string {
	if refused, found := errors.AsType[*pgconn.PgError](e.err); found {
		return refused.Code
	}
	return ""
}
