package format

import (
	"strconv"
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
func appendEnvelope(b []byte, c *event.Change) []byte {
	if c.Type.IsControl() || c.Type.IsBeside() {
		return b
	}
	op := envelopeOp(c)
	b = append(b, `{"before":`...)
	switch op {
	case opUpdate, opDelete:
		b = appendObject(b, c.Before, c)
	default:
		b = append(b, "null"...)
	}
	b = append(b, `,"after":`...)
	if op == opDelete {
		b = append(b, "null"...)
	} else {
		b = appendObject(b, c.After, c)
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
