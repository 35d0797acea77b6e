package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATE classes and codes that callers distinguish.
const (
	classDataException       = "22"
	classConstraintViolation = "23"
	codeRaiseException       = "P0001"

	CodeCardinality           = "21000"
	CodeCheckViolation        = "23514"
	CodeReadOnly              = "25006"
	CodeSerialization         = "40001"
	CodeDeadlock              = "40P01"
	CodeInsufficientPrivilege = "42501"
	CodeUndefinedTable        = "42P01"
	CodeLockNotAvailable      = "55P03"
)

// HasCode reports whether err is an error that Postgres has sent, with one of the SQLSTATE codes.
func HasCode(err error, codes ...string) bool {
	refused, found := errors.AsType[*pgconn.PgError](err)
	return found && slices.Contains(codes, refused.Code)
}

// HintMigrate adds a hint about `worker migrate` to an error about a missing table. It returns all
// other errors unchanged, nil too.
func HintMigrate(err error) error {
	if HasCode(err, CodeUndefinedTable) {
		return fmt.Errorf("%w (was `worker migrate` run?)", err)
	}
	return err
}

// Error is an error of Postgres or of a connection to it. It has the text of the error that it
// wraps.
type Error struct {
	err     error
	refused *pgconn.PgError // nil if Postgres has not sent the error
}

// WrapError returns an error of a call of Postgres as an *Error, whatever its type: the driver returns errors of a
// connection that ends while it reads rows as those of the network. It returns nil unchanged, and the end of the caller's
// context, unless an error of Postgres came with it.
func WrapError(err error) error {
	refused, known := errors.AsType[*pgconn.PgError](err)
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	_, unsent := errors.AsType[interface {
		error
		SafeToRetry() bool
	}](err)
	known = known || unconnected || unsent
	if err == nil || !known && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	return &Error{err, refused}
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Server returns the name of the server.
func (*Error) Server() string { return "postgres" }

// Rejected reports whether Postgres rejected the data of a statement: a data exception, a violated constraint, or RAISE
// EXCEPTION in a trigger of the customer. The same statement with other data could succeed.
func (e *Error) Rejected() bool {
	return e.refused != nil && (strings.HasPrefix(e.refused.Code, classDataException) ||
		strings.HasPrefix(e.refused.Code, classConstraintViolation) || e.refused.Code == codeRaiseException)
}

// Denied returns the message of Postgres when the role lacks a privilege, "" for other errors.
func (e *Error) Denied() string {
	if e.refused != nil && e.refused.Code == CodeInsufficientPrivilege {
		return e.refused.Message
	}
	return ""
}
