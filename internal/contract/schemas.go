package contract

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is a compiled JSON Schema. Formats are asserted: a date must be in the calendar.
type Schema struct{ compiled *jsonschema.Schema }

// compiledSchemas are the schemas that were compiled.
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

// Validate returns an error that says where a JSON text is not what the schema wants. A text that
// is not JSON is a *NotJSONError.
func (s Schema) Validate(text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return &NotJSONError{err}
	}
	return s.compiled.Validate(value)
}

// NotJSONError says that a text did not come as far as a schema. JSON is read as most libraries
// read it: of duplicate members the last counts, and what is no UTF-8 is replaced.
type NotJSONError struct{ err error }

func (e *NotJSONError) Error() string { return fmt.Sprintf("not JSON: %v", e.err) }

func (e *NotJSONError) Unwrap() error { return e.err }
