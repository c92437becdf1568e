package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/avro"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// columnType is the type of a column: text, unless it says otherwise.
type columnType struct {
	required bool
	number   bool     // an integer of 64 bits
	name     string   // by which consumers know what a text is, or that of a struct
	columns  []column // of a struct
}

type column struct {
	name string
	columnType
}

// connectSchema is the schema in the words of Kafka Connect.
func (c columnType) connectSchema() string {
	kind, named := "string", ""
	switch {
	case c.columns != nil:
		fields := c.eachColumn(func(of column) string { return `{"field":"` + of.name + `",` + of.connectSchema() + `}` })
		return fmt.Sprintf(`"type":"struct","name":"%s","version":1,"fields":[%s],"optional":%t`, c.name, fields, !c.required)
	case c.number:
		kind = "int64"
	case c.name != "":
		named = `,"name":"` + c.name + `","version":1`
	}
	return fmt.Sprintf(`"type":"%s","optional":%t%s`, kind, !c.required, named)
}

// avroSchema is the schema as Avro has it, with the names that Kafka Connect's converter reads. defined has the structs that
// stand before: Avro defines each once.
func (c columnType) avroSchema(defined map[string]bool) string {
	kind := `"string"`
	switch {
	case defined[c.name]:
		kind = `"` + c.name + `"`
	case c.columns != nil:
		defined[c.name] = true
		kind = `{"type":"record","name":"` + c.name + `","fields":[` + c.eachColumn(func(of column) string {
			return `{"name":"` + of.name + `",` + of.avroSchema(defined) + `}`
		}) + `]}`
	case c.number:
		kind = `"long"`
	case c.name != "":
		kind = `{"type":"string","connect.version":1,"connect.name":"` + c.name + `"}`
	}
	if c.required {
		return `"type":` + kind
	}
	return `"type":["null",` + kind + `],"default":null`
}

// jsonSchema is the schema as JSON Schema, with the names that Kafka Connect's converter reads. It allows no other members,
// or a registry would refuse columns that come later.
func (c columnType) jsonSchema() string {
	kind := `"type":"string"`
	switch {
	case c.columns != nil:
		var required []string
		next := -1
		properties := c.eachColumn(func(of column) string {
			if next++; of.required {
				required = append(required, `"`+of.name+`"`)
			}
			return fmt.Sprintf(`"%s":{"connect.index":%d,%s}`, of.name, next, of.jsonSchema())
		})
		kind = fmt.Sprintf(`"type":"object","title":"%s","properties":{%s},"required":[%s],"additionalProperties":false`,
			c.name, properties, strings.Join(required, ","))
	case c.number:
		kind = `"type":"integer","connect.type":"int64"`
	case c.name != "":
		kind += `,"title":"` + c.name + `","connect.version":1`
	}
	if c.required {
		return kind
	}
	return `"oneOf":[{"type":"null"},{` + kind + `}]`
}

func (c columnType) eachColumn(write func(column) string) string {
	all := make([]string, len(c.columns))
	for i, of := range c.columns {
		all[i] = write(of)
	}
	return strings.Join(all, ",")
}

// keepColumns removes the members of a struct that have no column.
func (c columnType) keepColumns(members map[string]any) {
	for name, value := range members {
		i := slices.IndexFunc(c.columns, func(of column) bool { return of.name == name })
		if i < 0 {
			delete(members, name)
		} else if inner, ok := value.(map[string]any); ok {
			c.columns[i].keepColumns(inner)
		}
	}
}

// The types of keys and values.
var (
	keyType   = columnType{name: "kubecdc.Key", required: true, columns: keyColumns}
	rowType   = columnType{name: "kubecdc.Row", columns: rowColumns}
	valueType = columnType{name: "kubecdc.Envelope", required: true, columns: []column{
		{"before", rowType}, {"after", rowType},
		{"source", columnType{name: "io.debezium.connector.kubecdc.Source", required: true, columns: sourceColumns}},
		{"op", requiredText}, {"ts_ms", integer},
	}}

	keyAvro   = avro.MustParse(`{` + keyType.avroSchema(map[string]bool{})[len(`"type":{`):])
	valueAvro = avro.MustParse(`{` + valueType.avroSchema(map[string]bool{})[len(`"type":{`):])
)

// RegisteredSchemas returns the schemas of keys and of values that a registry has for such a format.
func (f Format) RegisteredSchemas() (key, value string) {
	if f == DebeziumAvro {
		return keyAvro.String(), valueAvro.String()
	}
	return `{` + keyType.jsonSchema() + `}`, `{` + valueType.jsonSchema() + `}`
}

// RegisteredStart is how a record with a schema in a registry begins: this byte, and the ID of the schema in four more.
const (
	RegisteredStart = 0
	registeredFrame = 5
)

// appendRegistered appends what a JSON text says, by a schema of which the reader has the ID.
func (f Format) appendRegistered(b, text []byte, of columnType, schema *avro.Schema) []byte {
	var members map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err := decoder.Decode(&members)
	if err == nil && f == DebeziumAvro {
		text, err = schema.AppendEncode(nil, members)
	} else if err == nil {
		of.keepColumns(members)
		text, err = json.Marshal(members)
	}
	if err != nil {
		panic(fmt.Sprintf("%s is written here, and is as its schema says: %v", of.name, err))
	}
	return append(b, text...)
}

// readRegistered returns the payload of a record with a schema in a registry; nil if it is none of ours.
func readRegistered(body []byte, schema *avro.Schema) []byte {
	if len(body) > 0 && body[0] == '{' {
		if rawjson.SkipValue(body, 0, 0) != len(body) {
			return nil
		}
		return body
	}
	var members map[string]any
	if rest, err := schema.Decode(body, &members); err != nil || len(rest) > 0 {
		return nil
	}
	text, err := json.Marshal(members)
	if err != nil {
		return nil
	}
	return text
}
