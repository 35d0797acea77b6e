package contract

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is a compiled JSON Schema. Formats are asserted: a date must be in the calendar.
type Schema struct{ compiled *jsonschema.Schema }

// compiledSchemas caches compiled schemas by path and fragment.
var compiledSchemas sync.Map

// ReadSchema compiles a schema file, or, with a fragment like "#/$defs/data", a part of it.
func ReadSchema(path, fragment string) (Schema, error) {
	if found, compiled := compiledSchemas.Load(path + fragment); compiled {
		return found.(Schema), nil
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	compiled, err := c.Compile(path + fragment)
	if err == nil {
		compiledSchemas.Store(path+fragment, Schema{compiled})
	}
	return Schema{compiled}, err
}

// Validate returns an error that names the place where a JSON text does not match the schema, and a
// *NotJSONError when the text is not JSON.
func (s Schema) Validate(text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return &NotJSONError{err}
	}
	return s.compiled.Validate(value)
}

// NotJSONError is the error of a text that is not JSON, and was not validated. JSON is read as most
// libraries read it: the last of duplicate members counts, and invalid UTF-8 is replaced.
type NotJSONError struct{ err error }

func (e *NotJSONError) Error() string { return fmt.Sprintf("not JSON: %v", e.err) }

func (e *NotJSONError) Unwrap() error { return e.err }
