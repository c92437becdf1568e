package format

import (
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
)

// ReadEmitted identifies the change of a stored record, in any format, because the sink may have been configured differently
// when the record was written. header returns the header with one of the names above; "" if there is none.
//
// ours is false for records that no exporter wrote, and for dead letters, which are not deliveries. It is also false for
// damaged records: an unrecognized record is published again under the same ID, but a record mistaken for another change
// would be lost.
func ReadEmitted(value []byte, header func(name string) string) (e event.EmittedRecord, ours bool) {
	if all := header(HeaderChange); all != "" {
		f, ok := readNative([]byte(all))
		return f.emittedRecord(), ok && f.isConsistent("") && !f.deadLetter
	}
	id := header(HeaderID)
	if f, ok := readValue(value); ok && f.isConsistent(id) { // a row can have any members, but it has an ID header
		return f.emittedRecord(), !f.deadLetter
	}
	return readHeaders(id, header)
}

// recordFacts are the facts read from a record.
type recordFacts struct {
	id, kind, cluster, group, resource, namespace, name, uid, version string

	deadLetter bool
}

func (f *recordFacts) resourceName() string {
	return event.Resource{Group: f.group, Resource: f.resource}.String()
}

// isConsistent reports whether the facts belong to one change: its ID is composed of the others. headerID is the ID header;
// "" if there is none.
func (f *recordFacts) isConsistent(headerID string) bool {
	if f.kind == "" || f.resource == "" || headerID != "" && headerID != f.id {
		return false
	}
	if event.Type(f.kind).IsControl() {
		head, _, found := strings.Cut(f.id, f.resourceName()+"@")
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
	if f.namespace != "" {
		e.Key = f.namespace + "/" + f.name
	}
	return e
}

// readHeaders identifies a record by its headers if the value is a row or absent. The ID contains the version.
func readHeaders(id string, header func(name string) string) (e event.EmittedRecord, ours bool) {
	key := strings.Split(header(HeaderKey), "/")
	if len(key) != 4 {
		return event.EmittedRecord{}, false
	}
	f := recordFacts{
		id: id, kind: header(HeaderType), cluster: header(HeaderCluster),
		group: key[0], resource: key[1], namespace: key[2], name: key[3],
	}
	if f.group == "core" {
		f.group = ""
	}
	if rest, found := strings.CutPrefix(id, f.cluster+"/"); found && !event.Type(f.kind).IsControl() {
		f.uid, rest, _ = strings.Cut(rest, "/")
		f.version, _, _ = strings.Cut(rest, "/")
	}
	return f.emittedRecord(), f.isConsistent("")
}

// readValue reads the facts from a value. ok is false if it has none, like a row.
func readValue(value []byte) (f recordFacts, ok bool) {
	switch data, source := findNativeOrSource(value); {
	case data != nil:
		return readNative(data)
	case source != nil:
		return readMembers(source, sourceFields)
	}
	return readNative(value)
}

// findNativeOrSource returns the native object of a CloudEvent in structured mode, or the source of an envelope.
func findNativeOrSource(value []byte) (data, source []byte) {
	var event, envelope bool
	for m := enterObject(value); m.Next(); {
		from := m.I
		if m.I = rawjson.SkipValue(value, m.I, 0); m.I < 0 {
			return nil, nil
		}
		switch string(m.Key) {
		case "specversion":
			event = true
		case "data":
			data = value[from:m.I]
		case "op":
			envelope = true
		case "source":
			source = value[from:m.I]
		}
	}
	switch {
	case event:
		return data, nil
	case envelope:
		return nil, source
	}
	return nil, nil
}

// Member names of the facts in the native object and in the source of an envelope, see appendEnvelopeSource.
var (
	nativeFields = map[string]func(*recordFacts) *string{
		"id": factID, "type": factKind, "cluster": factCluster, "group": factGroup, "resource": factResource,
		"namespace": factNamespace, "name": factName, "uid": factUID, "resourceVersion": factVersion,
	}
	sourceFields = map[string]func(*recordFacts) *string{
		"id": factID, "type": factKind, "name": factCluster, "group": factGroup, "resource": factResource,
		"namespace": factNamespace, "objectName": factName, "uid": factUID, "resourceVersion": factVersion,
	}
)

func factID(f *recordFacts) *string        { return &f.id }
func factKind(f *recordFacts) *string      { return &f.kind }
func factCluster(f *recordFacts) *string   { return &f.cluster }
func factGroup(f *recordFacts) *string     { return &f.group }
func factResource(f *recordFacts) *string  { return &f.resource }
func factNamespace(f *recordFacts) *string { return &f.namespace }
func factName(f *recordFacts) *string      { return &f.name }
func factUID(f *recordFacts) *string       { return &f.uid }
func factVersion(f *recordFacts) *string   { return &f.version }

func readNative(b []byte) (recordFacts, bool) { return readMembers(b, nativeFields) }

// readMembers reads the facts of an object that has them under these names.
func readMembers(b []byte, names map[string]func(*recordFacts) *string) (f recordFacts, ok bool) {
	m := enterObject(b)
	for m.Next() {
		from := m.I
		if m.I = rawjson.SkipValue(b, m.I, 0); m.I < 0 {
			return recordFacts{}, false
		}
		if to := names[string(m.Key)]; to != nil && b[from] == '"' {
			*to(&f) = string(rawjson.Unquote(b[from:m.I]))
		}
		f.deadLetter = f.deadLetter || string(m.Key) == "deadLetter"
	}
	return f, m.I > 0
}

func enterObject(b []byte) rawjson.Members { return rawjson.EnterObject(b, rawjson.SkipSpace(b, 0)) }
