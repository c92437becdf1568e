package format

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Format is an encoding of changes that a sink can use. The zero value is [JSON].
type Format uint8

// The formats, with the names of the configuration and of docs/events-reference.md.
const (
	// JSON is the native form, see [AppendJSON].
	JSON Format = iota
	// CloudEvents is a CloudEvent 1.0 in binary mode: the value is the data, in the native form, and [Attributes] are
	// headers. The value is never empty: a CloudEvent without data would be a tombstone in Kafka.
	CloudEvents
	// CloudEventsStructured is a CloudEvent 1.0 in the JSON event format: attributes and data in one object.
	CloudEventsStructured
	// Debezium is the envelope of Debezium's connectors, {before, after, source, op, ts_ms}, as its JSON converter writes it
	// without schemas. Control records have no value.
	Debezium
	// Upsert is the object itself, for compacted topics and tables of the current state. Deletes and control records have no
	// value.
	Upsert
	// DebeziumInline is Debezium with one fixed schema for all kinds, in each value and key: Kafka Connect's JSON with
	// schemas. The key is a struct, and every record is a row or the tombstone of one: it has no control records.
	DebeziumInline
	// DebeziumAvro and DebeziumJSONSchema are the same rows by schemas in a registry, of which each value and key has the ID.
	DebeziumAvro
	DebeziumJSONSchema
)

var formatNames = [...]string{
	JSON: "json", CloudEvents: "cloudevents", CloudEventsStructured: "cloudevents-structured",
	Debezium: "debezium", Upsert: "upsert", DebeziumInline: "debezium with schema: inline",
	DebeziumAvro: "debezium with schema: registry in avro", DebeziumJSONSchema: "debezium with schema: registry in json",
}

// All returns every format that the key format names.
func All() []Format { return []Format{JSON, CloudEvents, CloudEventsStructured, Debezium, Upsert} }

// Parse returns the format with the given name.
func Parse(name string) (Format, error) {
	for _, f := range All() {
		if name == f.String() {
			return f, nil
		}
	}
	return JSON, fmt.Errorf(
		"%q is not a format; expected json, cloudevents, cloudevents-structured, debezium or upsert", name)
}

// String returns the name of f.
func (f Format) String() string { return formatNames[f] }

// ContentType is the media type of what [Format.AppendValue] writes.
func (f Format) ContentType() string {
	if f == CloudEventsStructured {
		return ContentTypeCloudEvents
	}
	if f == DebeziumAvro {
		return "application/avro"
	}
	return ContentTypeJSON
}

// NeedsBefore reports whether readers of f require the previous state on updates.
func (f Format) NeedsBefore() bool { return f.IsEnvelope() }

// IsEnvelope reports whether f is Debezium's envelope, with or without a schema.
func (f Format) IsEnvelope() bool { return f == Debezium || f.IsTyped() }

// IsTyped reports whether keys and values have a schema.
func (f Format) IsTyped() bool { return f >= DebeziumInline }

// IsRegistered reports whether that schema is in a registry.
func (f Format) IsRegistered() bool { return f > DebeziumInline }

// HasRows reports whether values of f are rows, and keys identify them.
func (f Format) HasRows() bool { return f.IsEnvelope() || f == Upsert }

// NeedsHeaders reports whether the value cannot be interpreted without headers or a key.
func (f Format) NeedsHeaders() bool { return f == CloudEvents || f.HasRows() }

// CanRepresent reports whether f can encode c at all. An attribution is not a state of an object, and a replayed record is a
// former one: if keys identify rows, such a record would delete or replace the row, so it must not be sent. A control record
// has no row.
func (f Format) CanRepresent(c *event.Change) bool {
	return (!c.Type.IsBeside() || !f.HasRows()) && (!c.Type.IsControl() || !f.IsTyped())
}

// AppendValue appends c, as the value of a record or the payload of a message, to b and returns the extended slice. It
// appends one JSON object without a newline outside the bodies, or nothing if the format has no value for c: null in Kafka,
// an empty payload in NATS.
func (f Format) AppendValue(b []byte, c *event.Change) []byte {
	switch {
	case f == CloudEventsStructured:
		return appendCloudEvent(b, c)
	case f.HasRows() && (c.Type.IsBeside() || c.Type.IsControl()):
		return b
	case f == Debezium:
		return appendEnvelope(b, c, appendObject)
	case f.IsTyped():
		return f.appendTyped(b, c)
	case f == Upsert:
		return appendRow(b, c.After, c)
	default:
		return AppendJSON(b, c)
	}
}

// NeedsFactsHeader reports whether the value does not show that c happened or that it is incomplete. [AppendFacts] must then
// be sent as a header, so that nothing disappears silently (I5).
func (f Format) NeedsFactsHeader(c *event.Change) bool {
	switch {
	case f.IsEnvelope():
		return c.Type.IsControl() || c.Type.IsBeside() || c.DeadLetter != nil
	case f == Upsert:
		return len(c.After) == 0 || c.Type.IsBeside() || len(c.Omitted) > 0 || c.RedactionChanged || c.DeadLetter != nil
	default:
		return false
	}
}

// OmittedMember is the first member of a truncated row in the formats [Upsert] and [Debezium]. It lists the members that
// were omitted because the destination rejected the row as too large. Readers of these formats only see the row, and would
// take a missing spec for an object without one.
const OmittedMember = "kubecdcOmitted"

// nonObjectMembers are the values of event.Change.Omitted that are not members of the object.
var nonObjectMembers = []string{"before", "changed"}

// appendRow appends an object as a row, and marks it if it is incomplete.
func appendRow(b, object []byte, c *event.Change) []byte {
	var names []string
	for _, name := range c.Omitted {
		if !slices.Contains(nonObjectMembers, name) {
			names = append(names, name)
		}
	}
	rest, isObject := bytes.CutPrefix(bytes.TrimSpace(object), []byte("{"))
	if len(names) == 0 || !isObject {
		return append(b, object...)
	}
	b = appendList(append(b, '{'), `"`+OmittedMember+`":`, names)
	if rest = bytes.TrimSpace(rest); rest[0] != '}' {
		b = append(b, ',')
	}
	return append(b, rest...)
}
