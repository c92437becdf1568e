package schemas

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/tools/eventschema"
)

// strict are the schemas by their names, compiled once.
var strict = sync.OnceValues(func() (map[string]*jsonschema.Schema, error) {
	all := make(map[string]*jsonschema.Schema)
	for _, name := range eventschema.Names() {
		text, err := eventschema.StrictSchema(name)
		if err != nil {
			return nil, err
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		compiler := jsonschema.NewCompiler()
		compiler.AssertFormat()
		if err := compiler.AddResource(eventschema.ID(name), document); err != nil {
			return nil, err
		}
		if all[name], err = compiler.Compile(eventschema.ID(name)); err != nil {
			return nil, err
		}
	}
	return all, nil
})

// Check returns an error that shows the value where it is not as its format is described. A tombstone, which is no value, is
// right in the formats that have them. It is safe for concurrent use.
func Check(f format.Format, value []byte) error {
	if len(value) == 0 && (f == format.Debezium || f == format.Upsert) {
		return nil
	}
	name := f.String()
	if f == format.CloudEvents { // its attributes are headers, its value is the native object
		name = format.JSON.String()
	}
	all, err := strict()
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
