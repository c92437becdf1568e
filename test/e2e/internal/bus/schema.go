package bus

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kubecdc/kubecdc/pkg/format/schema"
)

// schemas are the strict schemas by their names, compiled once.
var schemas = sync.OnceValues(func() (map[string]*jsonschema.Schema, error) {
	all := make(map[string]*jsonschema.Schema)
	for _, name := range schema.Names() {
		text, err := schema.Strict(name)
		if err != nil {
			return nil, err
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		compiler := jsonschema.NewCompiler()
		compiler.AssertFormat()
		if err := compiler.AddResource(schema.ID(name), document); err != nil {
			return nil, err
		}
		if all[name], err = compiler.Compile(schema.ID(name)); err != nil {
			return nil, err
		}
	}
	return all, nil
})

// check holds a value to the schema of its format, in the form that refuses what is not described.
func (f Form) check(value []byte) error {
	name := f.Format
	switch name {
	case "", "cloudevents":
		name = "json"
	case "debezium", "upsert":
		if len(value) == 0 {
			return nil
		}
	}
	all, err := schemas()
	if err != nil {
		return err
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return err
	}
	if err := all[name].Validate(instance); err != nil {
		return fmt.Errorf("not as its schema says: %w\n%s", err, value)
	}
	return nil
}
