package format

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Names of the headers that ReadEmitted uses. A destination maps them to its own header names, or to the key of a record.
const (
	HeaderChange  = "change"  // the output of [AppendFacts]
	HeaderID      = "id"      // see event.Change.ID
	HeaderType    = "type"    // see event.Type
	HeaderCluster = "cluster" // the name of the cluster
	HeaderKey     = "key"     // see event.Change.Key

	HeaderSnapshot = "snapshot" // the ID of the snapshot that a record is part of; not of every record
)

// ReadEmitted identifies the change of a stored record, in any format, because the sink may have been configured differently
// when the record was written. header returns the header with one of the names above; "" if there is none.
//
// ours is false for records that no exporter wrote, and for dead letters, which are not deliveries. It is also false for
// damaged records: an unrecognized record is published again under the same ID, but a record mistaken for another change
// would be lost.
func ReadEmitted(value []byte, header func(name string) string) (e event.EmittedRecord, ours bool) {
	s, ours := ReadStored(value, header)
	return s.EmittedRecord, ours
}

// Stored is the content of a stored record. It refers to the bytes that were read.
type Stored struct {
	event.EmittedRecord
	Cluster    string
	DeadLetter bool
	// Native is the native object, or the facts of a record without a value; nil for a row. Of a control record it has
	// everything.
	Native []byte
	// After is the object of a row, in the formats [Upsert] and [Debezium]; empty for a delete.
	After []byte
}

// ReadStored is [ReadEmitted], and returns the content too. What it returns of a record that is not ours is what the record
// claims.
func ReadStored(value []byte, header func(name string) string) (s Stored, ours bool) {
	if all := header(HeaderChange); all != "" {
		f, ok := readNative([]byte(all))
		s = f.storedRecord()
		if s.Type.IsControl() || s.Type.IsBeside() {
			s.Native = []byte(all)
		} else if s.Type != event.Deleted {
			s.After = value
		}
		return s, ok && f.isConsistent("") && !f.deadLetter
	}
	id := header(HeaderID)
	f, native, after, ok := readValue(value)
	if ok && f.isConsistent(id) { // a row can have any members, but it has an ID header
		s = f.storedRecord()
		s.Native, s.After = native, after
		return s, !f.deadLetter
	}
	if byHeaders, ours := readHeaders(id, header); ours {
		s = byHeaders.storedRecord()
		s.After = value
		return s, true
	}
	return f.storedRecord(), false
}

// recordFacts are the facts read from a record.
type recordFacts struct {
	id, kind, cluster, group, resource, namespace, name, uid, version, listVersion string

	deadLetter bool
}

// isConsistent reports whether the facts belong to one change: its ID is composed of the others. headerID is the ID header;
// "" if there is none.
func (f *recordFacts) isConsistent(headerID string) bool {
	if f.kind == "" || f.resource == "" || headerID != "" && headerID != f.id {
		return false
	}
	if event.Type(f.kind).IsControl() {
		of := event.Resource{Group: f.group, Resource: f.resource}
		head, _, found := strings.Cut(f.id, of.String()+"@")
		return found && strings.HasPrefix(head, f.cluster+"/")
	}
	rest, found := strings.CutPrefix(f.id, strings.Join([]string{f.cluster, f.uid, f.version, f.kind}, "/"))
	return found && (rest == "" || rest[0] == '/') && f.name != ""
}

func (f *recordFacts) emittedRecord() event.EmittedRecord {
	e := event.EmittedRecord{
		ID: f.id, Type: event.Type(f.kind), Resource: event.Resource{Group: f.group, Resource: f.resource},
	}
	if e.Type.IsControl() {
		return e
	}
	e.Key, e.UID, e.ResourceVersion = f.name, f.uid, f.version
	if e.Type == event.Deleted {
		e.ListVersion = f.listVersion
	}
	if f.namespace != "" {
		e.Key = f.namespace + "/" + f.name
	}
	return e
}

func (f *recordFacts) storedRecord() Stored {
	return Stored{EmittedRecord: f.emittedRecord(), Cluster: f.cluster, DeadLetter: f.deadLetter}
}

// ParseKey returns what the key of an object says, see [event.Change.Key]; the resource is empty if it is none. Control
// records of a whole resource have no name.
func ParseKey(key string) (cluster string, of event.Resource, namespace, name string) {
	if payload := findPayload([]byte(key), keyAvro); payload != nil {
		return readKeyColumns(payload)
	}
	parts := strings.Split(key, "/")
	if len(parts) != 5 {
		return "", of, "", ""
	}
	if of = (event.Resource{Group: parts[1], Resource: parts[2]}); of.Group == "core" {
		of.Group = ""
	}
	return parts[0], of, parts[3], parts[4]
}

// readHeaders identifies a record by its headers if the value is a row or absent. The ID contains the version.
func readHeaders(id string, header func(name string) string) (f recordFacts, ours bool) {
	cluster, of, namespace, name := ParseKey(header(HeaderKey))
	if of.Resource == "" || cluster != header(HeaderCluster) {
		return f, false
	}
	f = recordFacts{
		id: id, kind: header(HeaderType), cluster: cluster, group: of.Group, resource: of.Resource, namespace: namespace, name: name,
	}
	if rest, found := strings.CutPrefix(id, f.cluster+"/"); found && !event.Type(f.kind).IsControl() {
		f.uid, rest, _ = strings.Cut(rest, "/")
		f.version, _, _ = strings.Cut(rest, "/")
	}
	return f, f.isConsistent("")
}

// readValue reads the facts from a value, and returns the native object, or the object of an envelope. ok is false if it has
// none, like a row.
func readValue(value []byte) (f recordFacts, native, after []byte, ok bool) {
	if payload := findPayload(value, valueAvro); payload != nil {
		f, native, after, ok = readValue(payload)
		return f, native, readRow(after), ok
	}
	data, source, after := findNativeOrSource(value)
	switch {
	case data != nil:
		f, ok = readNative(data)
		return f, data, nil, ok
	case source != nil:
		f, ok = readMembers(source, sourceNames)
		return f, nil, after, ok
	}
	f, ok = readNative(value)
	return f, value, nil, ok
}

// findNativeOrSource returns the native object of a CloudEvent in structured mode, or the source and the object of an
// envelope; after is nil if that is null.
func findNativeOrSource(value []byte) (data, source, after []byte) {
	var event, envelope bool
	for m := enterObject(value); m.Next(); {
		from := m.I
		if m.I = rawjson.SkipValue(value, m.I, 0); m.I < 0 {
			return nil, nil, nil
		}
		switch string(m.Key) {
		case "specversion":
			event = true
		case "data":
			data = value[from:m.I]
		case "op":
			envelope = true
		case "after":
			if value[from] == '{' {
				after = value[from:m.I]
			}
		case "source":
			source = value[from:m.I]
		}
	}
	switch {
	case event:
		return data, nil, nil
	case envelope:
		return nil, source, after
	}
	return nil, nil, nil
}

// Names of the members with the facts, in the order of recordFacts.all: of the native object, of the source of an envelope,
// see appendEnvelopeSource, and of a key, see appendKeyColumns.
var (
	nativeNames = strings.Fields("id type cluster group resource namespace name uid resourceVersion listVersion")
	sourceNames = strings.Fields("id type name group resource namespace objectName uid resourceVersion listVersion")
	keyNames    = strings.Fields("- - cluster api_group resource namespace name")
)

func (f *recordFacts) all() [10]*string {
	return [...]*string{&f.id, &f.kind, &f.cluster, &f.group, &f.resource, &f.namespace, &f.name, &f.uid, &f.version, &f.listVersion}
}

func readNative(b []byte) (recordFacts, bool) { return readMembers(b, nativeNames) }

// readMembers reads the facts of an object that has them under these names.
func readMembers(b []byte, names []string) (f recordFacts, ok bool) {
	m := enterObject(b)
	for m.Next() {
		from := m.I
		if m.I = rawjson.SkipValue(b, m.I, 0); m.I < 0 {
			return recordFacts{}, false
		}
		if i := slices.Index(names, string(m.Key)); i >= 0 && b[from] == '"' {
			*f.all()[i] = string(rawjson.Unquote(b[from:m.I]))
		}
		f.deadLetter = f.deadLetter || string(m.Key) == "deadLetter"
	}
	return f, m.I > 0
}

func enterObject(b []byte) rawjson.Members { return rawjson.EnterObject(b, rawjson.SkipSpace(b, 0)) }
