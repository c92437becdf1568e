package format

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// envelopeVersion is source.version. It is increased when the form of the envelope changes.
const envelopeVersion = "1"

// The values of op (debezium.io/documentation/reference/stable/connectors, "change events").
const (
	opCreate = "c"
	opUpdate = "u"
	opDelete = "d"
	opRead   = "r" // the current row; claims nothing about the previous state
)

// appendEnvelope appends the change of an object as Debezium's JSON converter writes it without schemas. Members that
// readers require are never null: before on u and d, after on c, u and r. An update without a known previous state is
// therefore an r, which readers treat as the current row. A control record has no value: Flink's debezium-json fails on an
// unknown op, but skips a record without a value.
func appendEnvelope(b []byte, c *event.Change, appendState func(b, body []byte, c *event.Change) []byte) []byte {
	op := envelopeOp(c)
	b = append(b, `{"before":`...)
	switch op {
	case opUpdate, opDelete:
		b = appendState(b, c.Before, c)
	default:
		b = append(b, "null"...)
	}
	b = append(b, `,"after":`...)
	if op == opDelete {
		b = append(b, "null"...)
	} else {
		b = appendState(b, c.After, c)
	}
	b = appendEnvelopeSource(b, c)
	b = appendMember(b, `,"op":`, op)
	b = appendMillis(b, `,"ts_ms":`, c.ObservedAt)
	return append(b, `,"transaction":null}`...)
}

func envelopeOp(c *event.Change) string {
	switch {
	case c.Type == event.Deleted:
		return opDelete
	case c.Type == event.Added:
		return opCreate
	case c.Type == event.Updated && len(c.Before) > 0:
		return opUpdate
	}
	return opRead
}

// appendObject appends body, or only the identity of the object if there is no body.
func appendObject(b, body []byte, c *event.Change) []byte {
	if len(body) > 0 {
		return appendRow(b, body, c)
	}
	b = append(b, `{"apiVersion":`...)
	b = appendString(b, apiVersionOf(c))
	b = appendMember(b, `,"kind":`, c.Resource.Kind)
	b = appendMember(b, `,"metadata":{"name":`, c.Name)
	b = appendOptional(b, `,"namespace":`, c.Namespace)
	b = appendOptional(b, `,"uid":`, c.UID)
	b = appendOptional(b, `,"resourceVersion":`, c.ResourceVersion)
	return append(b, "}}"...)
}

// apiVersionOf returns group and version as objects have them: "v1", "apps/v1".
func apiVersionOf(c *event.Change) string {
	if c.Resource.Group == "" {
		return c.Resource.Version
	}
	return c.Resource.Group + "/" + c.Resource.Version
}

// appendEnvelopeSource appends the member source: first the members that every Debezium connector has, then the facts of the
// native object under their own names. Three names are already in use: version is part of apiVersion, name is objectName,
// and the ID of the snapshot is snapshotId.
func appendEnvelopeSource(b []byte, c *event.Change) []byte {
	b = append(b, `,"source":{"version":"`+envelopeVersion+`","connector":"kubecdc"`...)
	b = appendMember(b, `,"name":`, c.Cluster)
	b = appendMillis(b, `,"ts_ms":`, timeOf(c))
	b = appendMember(b, `,"snapshot":`, strconv.FormatBool(c.Type == event.Snapshot))
	b = appendMember(b, `,"db":`, c.Cluster)
	b = appendMember(b, `,"schema":`, c.Namespace)
	b = appendMember(b, `,"table":`, c.Resource.String())

	b = appendID(append(b, `,"id":`...), c)
	b = appendMember(b, `,"type":`, string(c.Type))
	b = appendMember(b, `,"group":`, c.Resource.Group)
	b = appendMember(b, `,"apiVersion":`, apiVersionOf(c))
	b = appendMember(b, `,"resource":`, c.Resource.Resource)
	b = appendMember(b, `,"kind":`, c.Resource.Kind)
	b = appendOptional(b, `,"namespace":`, c.Namespace)
	b = appendMember(b, `,"objectName":`, c.Name)
	b = appendVersionFacts(b, c)
	if c.Snapshot != nil {
		b = appendMember(b, `,"snapshotId":`, c.Snapshot.ID)
	}
	if len(c.Before) == 0 {
		switch c.Type {
		case event.Updated:
			b = append(b, `,"before":"unknown"`...)
		case event.Deleted:
			b = append(b, `,"before":"identity"`...)
		default: // has no former state
		}
	}
	b = appendList(b, `,"omitted":`, c.Omitted)
	b = appendBody(b, `,"changed":`, c.Changed)
	return append(b, '}')
}

func appendMillis(b []byte, member string, t time.Time) []byte {
	return strconv.AppendInt(append(b, member...), t.UnixMilli(), 10)
}

// ContentTypeCloudEvents is the media type of a CloudEvent in the JSON event format
// (github.com/cloudevents/spec, cloudevents/formats/json-format.md).
const ContentTypeCloudEvents = "application/cloudevents+json"

// Attribute is one context attribute of a CloudEvent (github.com/cloudevents/spec, cloudevents/spec.md, version 1.0.2).
type Attribute struct {
	Name string // as in the specification, without the prefix of any binding

	boolean bool // not quoted in the JSON form
	write   func(b []byte, c *event.Change) []byte
}

// Append appends the value of attribute a for c, in its canonical string form, to b and returns the extended slice. It
// appends nothing if c does not have the attribute: no value is empty.
func (a Attribute) Append(b []byte, c *event.Change) []byte { return a.write(b, c) }

// Attributes returns every attribute that a change can have, in the order in which they are written, except datacontenttype,
// which is always [ContentTypeJSON] and has its own header in most bindings.
//
// The specification allows no capitals and no separators in the names of extensions. None of them is an Integer: that type
// has 32 bits, which is too small for a resourceVersion.
func Attributes() []Attribute { return append([]Attribute(nil), attributes...) }

var attributes = []Attribute{
	{Name: "specversion", write: func(b []byte, _ *event.Change) []byte { return append(b, "1.0"...) }},
	{Name: "id", write: func(b []byte, c *event.Change) []byte { return c.AppendID(b) }},
	{Name: "source", write: appendSource},
	{Name: "type", write: func(b []byte, c *event.Change) []byte {
		return append(append(b, "io.kubecdc.resource."...), c.Type...)
	}},
	{Name: "subject", write: appendSubject},
	{Name: "time", write: func(b []byte, c *event.Change) []byte {
		return timeOf(c).UTC().AppendFormat(b, time.RFC3339Nano)
	}},
	{Name: "cluster", write: func(b []byte, c *event.Change) []byte { return append(b, c.Cluster...) }},
	{Name: "group", write: func(b []byte, c *event.Change) []byte { return append(b, groupName(c)...) }},
	{Name: "resource", write: func(b []byte, c *event.Change) []byte { return append(b, c.Resource.Resource...) }},
	{Name: "kind", write: func(b []byte, c *event.Change) []byte { return append(b, c.Resource.Kind...) }},
	{Name: "uid", write: func(b []byte, c *event.Change) []byte { return append(b, c.UID...) }},
	{Name: "resourceversion", write: func(b []byte, c *event.Change) []byte { return append(b, c.ResourceVersion...) }},
	{Name: "sequence", write: appendSequence},
	{Name: "partitionkey", write: func(b []byte, c *event.Change) []byte { return c.AppendKey(b) }},
	{Name: "delta", write: func(b []byte, c *event.Change) []byte { return append(b, c.Delta...) }},
	{Name: "class", write: func(b []byte, c *event.Change) []byte { return append(b, c.Class...) }},
	{Name: "snapshotid", write: appendSnapshotID},
	{Name: "coalesced", boolean: true, write: trueIf(func(c *event.Change) bool { return c.Coalesced })},
	{Name: "finalstateunknown", boolean: true, write: trueIf(func(c *event.Change) bool { return c.FinalStateUnknown })},
	{Name: "left", boolean: true, write: trueIf(func(c *event.Change) bool { return c.Left })},
}

// trueIf returns a writer that appends "true" if the condition holds, and nothing otherwise.
func trueIf(holds func(*event.Change) bool) func([]byte, *event.Change) []byte {
	return func(b []byte, c *event.Change) []byte {
		if holds(c) {
			return append(b, "true"...)
		}
		return b
	}
}

// groupName returns the group, or "core" for the core group, as in the key: attributes must not be empty.
func groupName(c *event.Change) string {
	if c.Resource.Group == "" {
		return "core"
	}
	return c.Resource.Group
}

// appendSource writes the resource as a URI reference (RFC 3986, section 4.1): an absolute path.
func appendSource(b []byte, c *event.Change) []byte {
	b = appendSegment(append(b, "/clusters/"...), c.Cluster)
	b = appendSegment(append(b, '/'), groupName(c))
	b = appendSegment(append(b, '/'), c.Resource.Version)
	return appendSegment(append(b, '/'), c.Resource.Resource)
}

// appendSegment appends s as one path segment; characters that are not unreserved (RFC 3986, section 2.3) are
// percent-encoded.
func appendSegment(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		switch ch := s[i]; {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9', strings.IndexByte("-._~", ch) >= 0:
			b = append(b, ch)
		default:
			b = append(b, '%', hex[ch>>4], hex[ch&15])
		}
	}
	return b
}

func appendSnapshotID(b []byte, c *event.Change) []byte {
	if c.Snapshot == nil {
		return b
	}
	return append(b, c.Snapshot.ID...)
}

// appendSubject appends namespace/name, or the name of a cluster-scoped object. A control record has no name and no subject.
func appendSubject(b []byte, c *event.Change) []byte {
	if c.Namespace != "" && c.Name != "" {
		b = append(append(b, c.Namespace...), '/')
	}
	return append(b, c.Name...)
}

// sequenceDigits is the length of the largest uint64.
const sequenceDigits = 20

// appendSequence appends the resourceVersion in a form that sorts as text, as the sequence extension requires
// (cloudevents/extensions/sequence.md). A resourceVersion that is not a number, as aggregated API servers may have, gives no
// sequence.
func appendSequence(b []byte, c *event.Change) []byte {
	rv := c.ResourceVersion
	if rv == "" || len(rv) > sequenceDigits || strings.Trim(rv, "0123456789") != "" {
		return b
	}
	const zeros = "00000000000000000000"
	return append(append(b, zeros[:sequenceDigits-len(rv)]...), rv...)
}

// appendCloudEvent writes attributes and data as one JSON object.
func appendCloudEvent(b []byte, c *event.Change) []byte {
	b = append(b, '{')
	for _, a := range attributes {
		b = a.appendMember(b, c)
	}
	b = append(b, `"datacontenttype":"`+ContentTypeJSON+`","data":`...)
	return append(AppendJSON(b, c), '}')
}

// appendMember appends the attribute as a member followed by a comma, or nothing.
func (a Attribute) appendMember(b []byte, c *event.Change) []byte {
	start := len(b)
	b = append(append(append(b, '"'), a.Name...), `":`...)
	if !a.boolean {
		b = append(b, '"')
	}
	value := len(b)
	b = a.write(b, c)
	switch text := b[value:]; {
	case len(text) == 0:
		return b[:start]
	case a.boolean:
		return append(b, ',')
	case slices.ContainsFunc(text, needsEscape):
		return append(appendEscaped(b[:value-1], string(text)), ',')
	}
	return append(b, `",`...)
}
