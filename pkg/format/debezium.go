package format

import (
	"strconv"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// envelopeVersion is source.version: it grows when the form of the envelope changes.
const envelopeVersion = "1"

// The values of op (debezium.io/documentation/reference/stable/connectors, "change events").
const (
	opCreate = "c"
	opUpdate = "u"
	opDelete = "d"
	opRead   = "r" // the row is so; claims nothing of what was before
)

// appendEnvelope writes the change of an object as Debezium's JSON converter does without schemas. What a reader needs is
// never null: before on u and d, after on c, u and r. An update whose former state is not known is therefore an r, which
// every reader takes for "the row is so". A control record has no form that readers know, and no value:
// Flink's debezium-json fails on an op it does not know, and passes over a record without a value.
func appendEnvelope(b []byte, c *event.Change) []byte {
	if c.Type.IsControl() || c.Type == event.Attributed {
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

// appendObject writes body, or what is known of an object without one: its identity.
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

// apiVersionOf writes group and version as objects do: "v1", "apps/v1".
func apiVersionOf(c *event.Change) string {
	if c.Resource.Group == "" {
		return c.Resource.Version
	}
	return c.Resource.Group + "/" + c.Resource.Version
}

// appendEnvelopeSource writes the member source: first what every connector of Debezium has there, then the facts of the native
// object under their own names, but for three that are taken: version and name are in apiVersionOf and objectName, and the
// id of the snapshot is snapshotId.
func appendEnvelopeSource(b []byte, c *event.Change) []byte {
	b = append(b, `,"source":{"version":"`+envelopeVersion+`","connector":"kubecdc"`...)
	b = appendMember(b, `,"name":`, c.Cluster)
	b = appendMillis(b, `,"ts_ms":`, changeTime(c))
	b = appendMember(b, `,"snapshot":`, strconv.FormatBool(c.Type == event.Snapshot))
	b = appendMember(b, `,"db":`, c.Cluster)
	b = appendMember(b, `,"schema":`, c.Namespace)
	b = appendMember(b, `,"table":`, c.Resource.String())

	b = appendMember(b, `,"id":`, c.ID())
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
		}
	}
	b = appendList(b, `,"omitted":`, c.Omitted)
	b = appendList(b, `,"changed":`, c.Changed)
	b = appendBody(b, `,"patch":`, c.Patch)
	return append(b, '}')
}

// changeTime is when the API server made the change, where its record tells, else when the exporter read it.
func changeTime(c *event.Change) time.Time {
	if c.Actor != nil {
		if t, err := time.Parse(time.RFC3339, c.Actor.Time); err == nil {
			return t
		}
	}
	return c.ObservedAt
}

func appendMillis(b []byte, member string, t time.Time) []byte {
	return strconv.AppendInt(append(b, member...), t.UnixMilli(), 10)
}
