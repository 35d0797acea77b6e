// Package members reads JSON objects strictly, for events and for queries: no member may be repeated,
// and each must have the form that the contract gives it. Numbers, dates and ids are read as they are
// written, and no conversion makes a value fit.
//
// Every error is an [Error] that begins with the name of the member. It says what the member must be
// and what was found, and never repeats a value: values may be private, and errors are logged.
package members
