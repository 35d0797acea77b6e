package contract

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schema is a compiled JSON Schema. It asserts formats: for example, a date must exist in the calendar.
type Schema struct{ compiled *jsonschema.Schema }

// compiledSchemas caches compiled schemas by path and fragment.
var compiledSchemas sync.Map

// ReadSchema compiles a schema file or, with a fragment like "#/$defs/data", a part of it.
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

// Validate returns an error that says where a JSON text breaks the schema. For a text that is not JSON
// it returns a *NotJSONError.
func (s Schema) Validate(text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return &NotJSONError{err}
	}
	return s.compiled.Validate(value)
}

// NotJSONError reports that a text is not JSON. Validate reads JSON like most libraries: the last of
// duplicate members counts, and invalid UTF-8 is replaced.
type NotJSONError struct{ err error }

func (e *NotJSONError) Error() string { return fmt.Sprintf("not JSON: %v", e.err) }

func (e *NotJSONError) Unwrap() error { return e.err }
