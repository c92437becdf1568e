package format

import (
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// What ReadEmitted asks for beside the value. A destination has these as headers of its own names, or as the key of a
// record.
const (
	HeaderChange  = "change"  // what [AppendFacts] wrote
	HeaderID      = "id"      // see event.Change.ID
	HeaderType    = "type"    // see event.Type
	HeaderCluster = "cluster" // the name of the cluster
	HeaderKey     = "key"     // see event.Change.Key
)

// ReadEmitted says which change a stored record tells of, whatever format it was written in: a sink may have been configured
// otherwise then. beside returns what stands beside the value under one of the names above; "" where there is nothing.
//
// ours is false for what no exporter wrote, and for copies of changes that could not be delivered, which are no delivery.
// What is damaged is not ours either: a record that is not recognized is published again, with the same ID, and a record
// that is taken for another one would be lost.
func ReadEmitted(value []byte, beside func(name string) string) (e event.EmittedRecord, ours bool) {
	if all := beside(HeaderChange); all != "" {
		f, ok := readNative([]byte(all))
		return f.emittedRecord(), ok && f.isConsistent("") && !f.deadLetter
	}
	id := beside(HeaderID)
	if f, ok := readValue(value); ok && f.isConsistent(id) { // a row can look like anything, but has an ID beside it
		return f.emittedRecord(), !f.deadLetter
	}
	return readHeaders(id, beside)
}

// recordFacts are what is read of a record.
type recordFacts struct {
	id, kind, cluster, group, resource, namespace, name, uid, version string

	deadLetter bool
}

func (f *recordFacts) resourceName() string {
	return event.Resource{Group: f.group, Resource: f.resource}.String()
}

// isConsistent says whether the facts are those of one change: its ID is made of the others. beside is the ID beside the value; ""
// where there is none.
func (f *recordFacts) isConsistent(beside string) bool {
	if f.kind == "" || f.resource == "" || beside != "" && beside != f.id {
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
	e := event.EmittedRecord{ID: f.id, Type: event.Type(f.kind), Resource: event.Resource{Group: f.group, Resource: f.resource}}
	if e.Type.IsControl() {
		return e
	}
	e.Key, e.UID, e.ResourceVersion = f.name, f.uid, f.version
	if f.namespace != "" {
		e.Key = f.namespace + "/" + f.name
	}
	return e
}

// readHeaders reads what stands beside a value that tells nothing: that of a row, or none. The ID names the version.
func readHeaders(id string, beside func(name string) string) (e event.EmittedRecord, ours bool) {
	key := strings.Split(beside(HeaderKey), "/")
	if len(key) != 4 {
		return event.EmittedRecord{}, false
	}
	f := recordFacts{id: id, kind: beside(HeaderType), cluster: beside(HeaderCluster), group: key[0], resource: key[1], namespace: key[2], name: key[3]}
	if f.group == "core" {
		f.group = ""
	}
	if rest, found := strings.CutPrefix(id, f.cluster+"/"); found && !event.Type(f.kind).IsControl() {
		f.uid, rest, _ = strings.Cut(rest, "/")
		f.version, _, _ = strings.Cut(rest, "/")
	}
	return f.emittedRecord(), f.isConsistent("")
}

// readValue reads the facts out of a value. ok is false for one that has none, as a row.
func readValue(value []byte) (f recordFacts, ok bool) {
	switch data, source := findNativeOrSource(value); {
	case data != nil:
		return readNative(data)
	case source != nil:
		return readMembers(source, sourceFields)
	}
	return readNative(value)
}

// findNativeOrSource finds the native object in a CloudEvent in structured mode, or the source in an envelope.
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

// The names of the facts in the native object and in the source of an envelope, see appendEnvelopeSource.
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

// readMembers reads the facts that an object has under these names.
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
