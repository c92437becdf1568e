package format

import (
	"encoding/json"
	"strings"
	"testing"

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

// TestTypedRecordsAreRowsAndTellTheirChange: every change of an object is a row by its own schema under a key of its own,
// from which the change and the object can be read back, and there is nothing else.
func TestTypedRecordsAreRowsAndTellTheirChange(t *testing.T) {
	for _, s := range append(sampleChanges(), variantChanges()...) {
		c := &s.change
		value := DebeziumInline.AppendValue(nil, c)
		if represented := !c.Type.IsControl() && !c.Type.IsBeside(); DebeziumInline.CanRepresent(c) != represented || (len(value) > 0) != represented {
			t.Errorf("%s: %q", s.name, value)
		}
		if len(value) == 0 {
			continue
		}
		key := DebeziumInline.AppendKey(nil, c)
		for _, text := range [][]byte{key, value} {
			var r typedRecord
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatalf("%s: %v\n%s", s.name, err, text)
			}
			if found := r.Schema.violation(r.Payload); found != "" {
				t.Errorf("%s: %s is not as the schema says\n%s", s.name, found, text)
			}
		}
		headers := headerVariants(DebeziumInline, c)["all"]
		withKey := func(name string) string {
			if name == HeaderKey {
				return string(key)
			}
			return headers(name)
		}
		got, ours := ReadStored(value, withKey)
		if want := c.EmittedRecord(); ours != (c.DeadLetter == nil) || ours && got.EmittedRecord != want {
			t.Errorf("%s: %t %+v, want %+v", s.name, ours, got, want)
		}
		if ours && c.Type != event.Deleted && len(c.Omitted) == 0 && string(got.After) != string(c.After) {
			t.Errorf("%s: %s, want %s", s.name, got.After, c.After)
		}
		if cluster, of, namespace, name := ParseKey(string(key)); cluster != c.Cluster || of.String() != c.Resource.String() ||
			namespace != c.Namespace || name != c.Name {
			t.Errorf("%s: the key says %s %s %s %s", s.name, cluster, of, namespace, name)
		}
		if ours && c.Type == event.Deleted {
			if tombstone, ours := ReadEmitted(nil, withKey); !ours || tombstone.ID != c.ID() {
				t.Errorf("%s: its tombstone is of %q", s.name, tombstone.ID)
			}
		}
	}
}

func TestTypedColumnsAreReadFromTheObject(t *testing.T) {
	c := &event.Change{
		Type: event.Added, Cluster: "dev", Resource: event.Resource{Version: "v1", Resource: "roles", Kind: "Role"}, Name: "h\x00i",
		After: []byte(`{"metadata":{"name":"h\u0000i","creationTimestamp":"2026-05-04T03:02:01Z","deletionTimestamp":"[masked]",` +
			`"labels":{"a":"\"\\u0000"},"ownerReferences":[{"uid":"1"},{"kind":"X","name":"x","uid":"2","controller":true}]},` + "\n" + `"n":1e21}`),
	}
	var r typedRecord
	if err := json.Unmarshal(DebeziumInline.AppendValue(nil, c), &r); err != nil {
		t.Fatal(err)
	}
	after := r.Payload["after"].(map[string]any)
	for column, want := range map[string]any{
		"name": "h%00i", "created": "2026-05-04T03:02:01Z", "deleting": nil, "labels": `{"a":"\"\\u0000"}`,
		"owner_kind": "X", "owner_name": "x", "owner_uid": "2",
		"object": strings.ReplaceAll(strings.Replace(string(c.After), `h\u0000i`, "h%00i", 1), "\n", " "),
	} {
		if after[column] != want {
			t.Errorf("%s is %q, want %q", column, after[column], want)
		}
	}
	if _, _, _, name := ParseKey(string(DebeziumInline.AppendKey(nil, c))); name != c.Name {
		t.Errorf("the key has the name %q", name)
	}
}
