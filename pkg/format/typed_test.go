package format

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/twmb/avro"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// typedRecord is a value or a key as Kafka Connect reads it.
type typedRecord struct {
	Schema  typedField
	Payload map[string]any
}

type typedField struct {
	Field, Type string
	Optional    bool
	Fields      []typedField
}

// violation returns the first field in which a value is not as the schema says; "" if there is none.
func (f typedField) violation(value any) string {
	switch v := value.(type) {
	case nil:
		if f.Optional {
			return ""
		}
	case string:
		if f.Type == "string" {
			return ""
		}
	case float64:
		if f.Type == "int64" {
			return ""
		}
	case map[string]any:
		for _, field := range f.Fields {
			if found := field.violation(v[field.Field]); found != "" {
				return f.Field + "/" + found
			}
		}
		if f.Type == "struct" {
			return ""
		}
	}
	return f.Field
}

// typed are the formats with a schema of keys and values.
var typed = []Format{DebeziumInline, DebeziumAvro, DebeziumJSONSchema}

// frame begins a record as a sink does.
func (f Format) frame(text []byte) []byte {
	if !f.IsRegistered() || len(text) == 0 {
		return text
	}
	return append([]byte{RegisteredStart, 0, 0, 0, 7}, text...)
}

// readTyped returns what a key or value says by its own schema, or by the one in a registry.
func (f Format) readTyped(t *testing.T, framed []byte, schema *avro.Schema, registered string) map[string]any {
	t.Helper()
	if f == DebeziumInline {
		var r typedRecord
		if err := json.Unmarshal(framed, &r); err != nil {
			t.Fatalf("%v\n%s", err, framed)
		}
		if found := r.Schema.violation(r.Payload); found != "" {
			t.Errorf("%s is not as the schema says\n%s", found, framed)
		}
		return r.Payload
	}
	var members map[string]any
	payload := readRegistered(framed[registeredFrame:], schema)
	if err := json.Unmarshal(payload, &members); err != nil {
		t.Fatalf("%v\n%q", err, framed)
	}
	if f == DebeziumJSONSchema {
		text, err := jsonschema.UnmarshalJSON(strings.NewReader(registered))
		c := jsonschema.NewCompiler()
		if err = errors.Join(err, c.AddResource("registered.json", text)); err != nil {
			t.Fatal(err)
		}
		if err := c.MustCompile("registered.json").Validate(members); err != nil {
			t.Errorf("%s: %v", framed[registeredFrame:], err)
		}
	}
	return members
}

// dropNulls removes the members that are null, and returns the rest.
func dropNulls(members map[string]any) map[string]any {
	maps.DeleteFunc(members, func(_ string, value any) bool {
		if inner, ok := value.(map[string]any); ok {
			dropNulls(inner)
		}
		return value == nil
	})
	return members
}

// TestTypedRecordsAreRowsAndTellTheirChange: every change of an object is a row by its schema under a key of its own, from
// which the change and the object can be read back, and there is nothing else. It is the same row whatever has the schema.
func TestTypedRecordsAreRowsAndTellTheirChange(t *testing.T) {
	for _, s := range append(sampleChanges(), variantChanges()...) {
		c := &s.change
		var inline [2]map[string]any
		for _, f := range typed {
			keySchema, valueSchema := f.RegisteredSchemas()
			value := f.frame(f.AppendValue(nil, c))
			if represented := !c.Type.IsControl() && !c.Type.IsBeside(); f.CanRepresent(c) != represented || (len(value) > 0) != represented {
				t.Errorf("%s: %q", s.name, value)
			}
			if len(value) == 0 {
				continue
			}
			key := f.frame(f.AppendKey(nil, c))
			says := [2]map[string]any{f.readTyped(t, key, keyAvro, keySchema), f.readTyped(t, value, valueAvro, valueSchema)}
			valueType.keepColumns(says[1])
			dropNulls(says[1])
			if f == DebeziumInline {
				inline = says
			} else if !reflect.DeepEqual(says, inline) {
				t.Errorf("%s: %v says %v, and %v", s.name, f, says, inline)
			}
			checkReadBack(t, s.name, f, c, key, value)
		}
	}
}

// checkReadBack reads a change back from its record.
func checkReadBack(t *testing.T, name string, f Format, c *event.Change, key, value []byte) {
	t.Helper()
	headers := headerVariants(f, c)["all"]
	withKey := func(name string) string {
		if name == HeaderKey {
			return string(key)
		}
		return headers(name)
	}
	got, ours := ReadStored(value, withKey)
	if want := c.EmittedRecord(); ours != (c.DeadLetter == nil) || ours && got.EmittedRecord != want {
		t.Errorf("%s: %v: %t %+v, want %+v", name, f, ours, got, want)
	}
	if ours && c.Type != event.Deleted && len(c.Omitted) == 0 && string(got.After) != string(c.After) {
		t.Errorf("%s: %v: %s, want %s", name, f, got.After, c.After)
	}
	if cluster, of, namespace, object := ParseKey(string(key)); cluster != c.Cluster || of.String() != c.Resource.String() ||
		namespace != c.Namespace || object != c.Name {
		t.Errorf("%s: %v: the key says %s %s %s %s", name, f, cluster, of, namespace, object)
	}
	if ours && c.Type == event.Deleted {
		if tombstone, ours := ReadEmitted(nil, withKey); !ours || tombstone.ID != c.ID() {
			t.Errorf("%s: %v: its tombstone is of %q", name, f, tombstone.ID)
		}
	}
}

// TestADeeplyNestedChangeIsARow: what has changed may be nested as deeply as an object, and more deeply than a parser takes.
func TestADeeplyNestedChangeIsARow(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 9990) + "1" + strings.Repeat("}", 9990)
	c := &event.Change{
		Type: event.Updated, Cluster: "dev", Resource: event.Resource{Version: "v1", Resource: "roles", Kind: "Role"}, Name: "x", UID: "1",
		After: []byte(`{"metadata":{"name":"x"},"deep":` + deep + `}`), Changed: []byte(strings.Repeat("[", 20) + deep + strings.Repeat("]", 20)),
	}
	for _, f := range typed[1:] {
		value := f.frame(f.AppendValue(nil, c))
		if got, ours := ReadStored(value, headerVariants(f, c)["all"]); !ours || string(got.After) != string(c.After) {
			t.Errorf("%v: %t, %d bytes of an object", f, ours, len(got.After))
		}
	}
}

func TestTypedColumnsAreReadFromTheObject(t *testing.T) {
	c := &event.Change{
		Type: event.Added, Cluster: "dev", Resource: event.Resource{Version: "v1", Resource: "roles", Kind: "Role"}, Name: "h\x00i",
		After: []byte(`{"metadata":{"name":"h\u0000i","creationTimestamp":"2026-05-04T03:02:01Z","deletionTimestamp":"[masked]",` +
			`"labels":{"a":"\"\\u0000"},"ownerReferences":[{"uid":"1"},{"kind":"X","name":"x","uid":"2","controller":true}]},` + "\n" + `"n":1e21,"half":"\ud83d\uDE00\udfff\ud800x\ud7ff\\ud800"}`),
	}
	for _, f := range typed {
		_, registered := f.RegisteredSchemas()
		after := f.readTyped(t, f.frame(f.AppendValue(nil, c)), valueAvro, registered)["after"].(map[string]any)
		for column, want := range map[string]any{
			"name": "h%00i", "created": "2026-05-04T03:02:01Z", "deleting": nil, "labels": `{"a":"\"\\u0000"}`,
			"owner_kind": "X", "owner_name": "x", "owner_uid": "2",
			"object": strings.ReplaceAll(strings.NewReplacer(`h\u0000i`, "h%00i", `\udfff\ud800x`, `\ufffd\ufffdx`).Replace(string(c.After)), "\n", " "),
		} {
			if after[column] != want {
				t.Errorf("%v: %s is %q, want %q", f, column, after[column], want)
			}
		}
		if _, _, _, name := ParseKey(string(f.frame(f.AppendKey(nil, c)))); name != c.Name {
			t.Errorf("%v: the key has the name %q", f, name)
		}
	}
}
