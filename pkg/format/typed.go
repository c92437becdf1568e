package format

import (
	"bytes"
	"strings"
	"time"

	"github.com/twmb/avro"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// The types of columns.
var (
	requiredText = columnType{required: true}
	optionalText = columnType{}
	timeText     = columnType{name: "io.debezium.time.ZonedTimestamp"}
	jsonText     = columnType{name: "io.debezium.data.Json"}
	integer      = columnType{number: true}
)

// keyColumns are the primary key of a row. They never change: compaction compares keys as bytes, with their schema.
var keyColumns = []column{
	{"cluster", requiredText}, {"api_group", requiredText}, {"resource", requiredText}, {"namespace", requiredText}, {"name", requiredText},
}

// rowColumns are those of every kind. New ones are added at the end, and are optional.
var rowColumns = append(keyColumns[:len(keyColumns):len(keyColumns)], []column{
	{"version", optionalText}, {"kind", optionalText}, {"uid", optionalText}, {"resource_version", optionalText},
	{"created", timeText}, {"deleting", timeText},
	{"owner_kind", optionalText}, {"owner_name", optionalText}, {"owner_uid", optionalText},
	{"labels", jsonText}, {"object", jsonText},
}...)

// sourceColumns are the members of source that have one type. Connect passes over the others.
var sourceColumns = []column{
	{"version", optionalText}, {"connector", optionalText}, {"name", optionalText}, {"ts_ms", integer}, {"snapshot", optionalText},
	{"db", requiredText}, {"schema", optionalText}, {"table", requiredText}, {"id", optionalText}, {"type", optionalText},
	{"group", optionalText}, {"apiVersion", optionalText}, {"resource", optionalText}, {"kind", optionalText},
	{"namespace", optionalText}, {"objectName", optionalText}, {"uid", optionalText}, {"resourceVersion", optionalText},
	{"listVersion", optionalText}, {"generation", integer}, {"observedAt", optionalText}, {"class", optionalText},
	{"snapshotId", optionalText},
}

// The schemas of Kafka Connect's JSON.
var keySchema, valueSchema = `{` + keyType.connectSchema() + `}`, `{` + valueType.connectSchema() + `}`

// typedStart is how every typed value and key begins.
const typedStart = `{"schema":{"type":"struct",`

// AppendKey appends the key of a record of c in Kafka: that of the change, or a struct with the same parts, without the
// start that names its schema in a registry.
func (f Format) AppendKey(b []byte, c *event.Change) []byte {
	switch {
	case f == DebeziumInline:
		b = append(append(append(b, `{"schema":`...), keySchema...), `,"payload":`...)
		return append(appendKeyPayload(b, c), '}')
	case f.IsRegistered():
		return f.appendRegistered(b, appendKeyPayload(nil, c), keyType, keyAvro)
	}
	return c.AppendKey(b)
}

// appendKeyPayload appends the key of c as a struct.
func appendKeyPayload(b []byte, c *event.Change) []byte {
	return append(appendKeyColumns(append(b, '{'), c), '}')
}

func appendKeyColumns(b []byte, c *event.Change) []byte {
	b = appendMember(b, `"cluster":`, c.Cluster)
	b = appendMember(b, `,"api_group":`, c.Resource.Group)
	b = appendMember(b, `,"resource":`, c.Resource.Resource)
	b = appendMember(b, `,"namespace":`, c.Namespace)
	return appendMember(b, `,"name":`, writtenName(c.Name))
}

// writtenNUL stands for NUL, which names of RBAC and values may contain, and no text of PostgreSQL. Names have no "%".
const writtenNUL = "%00"

func writtenName(name string) string { return strings.ReplaceAll(name, "\x00", writtenNUL) }

// appendTyped appends the envelope as Debezium's converters write it: as JSON with its schema, or by one in a registry.
func (f Format) appendTyped(b []byte, c *event.Change) []byte {
	if f.IsRegistered() {
		row := *c
		row.Changed = nil // there is no column for it, and it may be nested more deeply than a parser takes
		return f.appendRegistered(b, appendEnvelope(nil, &row, appendColumns), valueType, valueAvro)
	}
	b = append(append(append(b, `{"schema":`...), valueSchema...), `,"payload":`...)
	return append(appendEnvelope(b, c, appendColumns), '}')
}

// appendColumns appends an object as a row of [rowColumns]; without a body it is the identity of the object.
func appendColumns(b, body []byte, c *event.Change) []byte {
	object := appendObject(nil, body, c)
	b = appendKeyColumns(append(b, '{'), c)
	b = appendMember(b, `,"version":`, c.Resource.Version)
	b = appendMember(b, `,"kind":`, c.Resource.Kind)
	b = appendMetadata(b, rawjson.Value(object).Member("metadata"))
	return append(appendText(append(b, `,"object":`...), object), '}')
}

// appendMetadata appends the columns that are read from the metadata of an object.
func appendMetadata(b []byte, metadata rawjson.Value) []byte {
	for name, value := range metadata.Members() {
		switch string(name) {
		case "uid":
			b = appendColumn(b, `,"uid":`, value)
		case "resourceVersion":
			b = appendColumn(b, `,"resource_version":`, value)
		case "creationTimestamp":
			b = appendTime(b, `,"created":`, value)
		case "deletionTimestamp":
			b = appendTime(b, `,"deleting":`, value)
		case "labels":
			if value[0] == '{' {
				b = appendText(append(b, `,"labels":`...), value)
			}
		case "ownerReferences":
			owner := findOwner(value)
			b = appendColumn(b, `,"owner_kind":`, owner.Member("kind"))
			b = appendColumn(b, `,"owner_name":`, owner.Member("name"))
			b = appendColumn(b, `,"owner_uid":`, owner.Member("uid"))
		}
	}
	return b
}

// findOwner returns the owner that controls the object, or else the first one.
func findOwner(owners rawjson.Value) (owner rawjson.Value) {
	for each := range owners.Elements() {
		if string(each.Member("controller")) == "true" {
			return each
		}
		if owner == nil {
			owner = each
		}
	}
	return owner
}

// appendColumn appends a column of text if the value is one.
func appendColumn(b []byte, member string, value rawjson.Value) []byte {
	if !value.IsText() {
		return b
	}
	return appendMember(b, member, writtenName(value.Text()))
}

// appendTime appends a column of time, if the value is one: a redacted one is not.
func appendTime(b []byte, member string, value rawjson.Value) []byte {
	if !value.IsText() {
		return b
	}
	if _, err := time.Parse(time.RFC3339Nano, string(value[1:len(value)-1])); err != nil {
		return b
	}
	return append(append(b, member...), value...)
}

// appendText appends JSON as a JSON string, in one line. PostgreSQL reads no member of an object in which NUL is escaped, or
// half of a surrogate pair, which becomes U+FFFD.
func appendText(b, text []byte) []byte {
	b = append(b, '"')
	for i := 0; i < len(text); i++ {
		switch ch := text[i]; {
		case ch == '"':
			b = append(b, `\"`...)
		case ch < ' ': // between tokens
			b = append(b, ' ')
		case ch != '\\':
			b = append(b, ch)
		case bytes.HasPrefix(text[i:], escapedNUL):
			b = append(b, writtenNUL...)
			i += escapedRune - 1
		case surrogateHalf(text[i:]) < '8': // with what it escapes
			i++
			if b = append(b, `\\`...); text[i] == '"' || text[i] == '\\' {
				b = append(b, '\\')
			}
			b = append(b, text[i])
		case surrogateHalf(text[i:]) < 'c' && surrogateHalf(text[i+escapedRune:]) >= 'c': // a pair
			b = append(append(b, '\\'), text[i:i+escapedRune]...)
			i += escapedRune
			b = append(append(b, '\\'), text[i:i+escapedRune]...)
			i += escapedRune - 1
		default:
			b = append(b, `\\ufffd`...)
			i += escapedRune - 1
		}
	}
	return append(b, '"')
}

var escapedNUL = []byte(`\u0000`)

const escapedRune = len(`\u0000`)

// surrogateHalf returns the digit by which the halves of surrogate pairs differ if JSON begins with an escaped one: 8 to b
// is a first half, c to f a second one.
func surrogateHalf(text []byte) byte {
	if len(text) < escapedRune || text[0] != '\\' || text[1] != 'u' || text[2]|0x20 != 'd' {
		return 0
	}
	return text[3] | 0x20
}

// findPayload returns the payload of a typed value or key, which has this schema in a registry; nil if it is not typed.
func findPayload(text []byte, registered *avro.Schema) []byte {
	if len(text) > registeredFrame && text[0] == RegisteredStart {
		return readRegistered(text[registeredFrame:], registered)
	}
	if !bytes.HasPrefix(text, []byte(typedStart)) || rawjson.SkipValue(text, 0, 0) != len(text) {
		return nil
	}
	return rawjson.Value(text).Member("payload")
}

// readRow returns the object of a typed row; nil if it is none.
func readRow(row []byte) []byte {
	if object := rawjson.Value(row).Member("object"); object.IsText() {
		return rawjson.Unquote(object)
	}
	return nil
}

// readKeyColumns is the inverse of appendKeyColumns.
func readKeyColumns(payload []byte) (cluster string, of event.Resource, namespace, name string) {
	f, _ := readMembers(payload, keyNames)
	name = strings.ReplaceAll(f.name, writtenNUL, "\x00")
	return f.cluster, event.Resource{Group: f.group, Resource: f.resource}, f.namespace, name
}
