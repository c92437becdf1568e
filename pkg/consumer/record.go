package consumer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Record is a native object, with each member that docs/events-reference.md lists. A table retains After and modifies no
// member.
type Record struct {
	ID                string          `json:"id"`
	Type              string          `json:"type"`
	Cluster           string          `json:"cluster"`
	Group             string          `json:"group"`
	Version           string          `json:"version"`
	Resource          string          `json:"resource"`
	Kind              string          `json:"kind"`
	Namespace         string          `json:"namespace"`
	Name              string          `json:"name"`
	UID               string          `json:"uid"`
	ResourceVersion   string          `json:"resourceVersion"`
	ListVersion       string          `json:"listVersion"`
	Generation        int64           `json:"generation"`
	ObservedAt        time.Time       `json:"observedAt"`
	ChangedAt         *ChangedAt      `json:"changedAt"`
	Delta             string          `json:"delta"`
	Coalesced         bool            `json:"coalesced"`
	FinalStateUnknown bool            `json:"finalStateUnknown"`
	Left              bool            `json:"left"`
	RedactionChanged  bool            `json:"redactionChanged"`
	Actor             *Actor          `json:"actor"`
	Class             string          `json:"class"`
	Snapshot          *Snapshot       `json:"snapshot"`
	Gap               *Gap            `json:"gap"`
	Watermark         *Watermark      `json:"watermark"`
	Replay            *Replay         `json:"replay"`
	Of                string          `json:"of"`
	By                *Author         `json:"by"`
	RequestedBy       *Author         `json:"requestedBy"`
	Certainty         string          `json:"certainty"`
	DeadLetter        *DeadLetter     `json:"deadLetter"`
	Omitted           []string        `json:"omitted"`
	Changed           []Difference    `json:"changed"`
	Before            json.RawMessage `json:"before"`
	After             json.RawMessage `json:"after"`
}

// ChangedAt is the member changedAt: the change was made between NotBefore, if that is not zero, and At.
type ChangedAt struct {
	At        time.Time `json:"at"`
	NotBefore time.Time `json:"notBefore"`
	Source    string    `json:"source"` // audit, managedFields, deletion or watch
}

// Actor is the member actor: the field manager of a write, by the name that it gave itself.
type Actor struct {
	Manager     string    `json:"manager"`
	Operation   string    `json:"operation"` // Apply or Update
	Subresource string    `json:"subresource"`
	Time        time.Time `json:"time"`
}

// Author is the authenticated user of a request, or in Unknown the reason why none is named. The client chose what is in
// Claimed.
type Author struct {
	User                    string    `json:"user"`
	UID                     string    `json:"uid"`
	Groups                  []string  `json:"groups"`
	Impersonator            string    `json:"impersonator"`
	ImpersonationConstraint string    `json:"impersonationConstraint"`
	Verb                    string    `json:"verb"`
	Subresource             string    `json:"subresource"`
	Received                time.Time `json:"received"`
	Claimed                 struct {
		UserAgent string   `json:"userAgent"`
		SourceIPs []string `json:"sourceIPs"`
		AuditID   string   `json:"auditID"`
	} `json:"claimed"`
	Unknown string `json:"unknown"`
}

// Replay is the member replay: of a record that is emitted again Of and Type, of the end of a replay the rest.
type Replay struct {
	ID     string `json:"id"`
	Of     string `json:"of"`
	Type   string `json:"type"`
	State  string `json:"state"`
	Count  int    `json:"count"`
	Reason string `json:"reason"`
}

// DeadLetter is the member deadLetter: the sink that could not deliver the record, and why.
type DeadLetter struct {
	Sink   string `json:"sink"`
	Reason string `json:"reason"`
}

// Snapshot is the member snapshot. All fields except ID are set only on snapshot.end.
type Snapshot struct {
	ID       string `json:"id"`
	Position string `json:"position"`
	Count    int    `json:"count"`
	Digest   string `json:"digest"`
}

// Difference is an item of the member changed. In a list of paths it has nothing else.
type Difference struct {
	Path     string          // JSON Pointer (RFC 6901) in which an item of a list with keys is [name=web]
	From, To json.RawMessage // nil if the value was added or removed, or is in Omitted
	Index    *int            // of an item with keys that was added or removed
	Omitted  []string        // values that are left out: from, to
}

// UnmarshalJSON decodes an item of a list of values or of paths.
func (d *Difference) UnmarshalJSON(item []byte) error {
	if item[0] == '"' {
		return json.Unmarshal(item, &d.Path)
	}
	type values Difference
	return json.Unmarshal(item, (*values)(d))
}

// Gap is the member gap: history between two positions was lost.
type Gap struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"`
}

// Parse decodes one native object. It ignores unknown members and accepts unknown types, which [Table.Apply] ignores. Its
// error does not quote the object.
func Parse(value []byte) (Record, error) {
	var r Record
	if err := r.decode(value); err != nil {
		return r, fmt.Errorf("not a native object: %w", err)
	}
	if r.ID == "" || r.Type == "" {
		return r, fmt.Errorf("not a native object: no id or no type")
	}
	framed := r.Type == "snapshot.begin" || r.Type == "snapshot.end"
	if framed && r.Snapshot == nil || r.Type == "gap" && r.Gap == nil || r.Type == "watermark" && r.Watermark == nil {
		return r, fmt.Errorf("record %s lacks the member that its type %s requires", r.ID, r.Type)
	}
	return r, nil
}

// Resource identifies a resource of a cluster, independent of the version in which it is served.
type Resource struct{ Cluster, Group, Resource string }

// Key identifies an object by name. An object that is deleted and created again has the same key.
type Key struct{ Namespace, Name string }

// readVersion returns the version of the cluster at which the record was read: of its list, or of the object itself if a
// watch delivered it. It is "" for a record that a list showed to 0.9.0, which did not write that version.
func (r Record) readVersion() string {
	listed := r.Coalesced || r.Snapshot != nil || r.Type == "sync"
	if r.ListVersion != "" || listed {
		return r.ListVersion
	}
	return r.ResourceVersion
}

func (r Record) resourceName() Resource { return Resource{r.Cluster, r.Group, r.Resource} }

// isReadBefore reports whether what was read at version a of the cluster was read before what was read at b. The versions
// are a clock that all exporters of a cluster share. Their own clocks decide only between versions that are equal, unknown
// or without an order.
func isReadBefore(a, b string, observedA, observedB time.Time) bool {
	order := resourceversion.Order(a, b)
	return order < 0 || order == 0 && observedA.Before(observedB)
}

// decode decodes a native object as encoding/json would, by the exact names of members. It walks over the object's state,
// which is most of the bytes, once, and not twice: decoding is the largest cost of reading a topic.
func (r *Record) decode(value []byte) error {
	m := rawjson.EnterObject(value, rawjson.SkipSpace(value, 0))
	for m.Next() {
		begin := m.I
		if m.I = rawjson.SkipValue(value, begin, 1); m.I < 0 {
			break
		}
		if err := r.decodeMember(m.Key, value[begin:m.I]); err != nil {
			return err
		}
	}
	return rawjson.CheckEnd(value, m.I)
}

// members has the index of each field of a Record by the name of its member.
var members = func() map[string]int {
	fields := make(map[string]int)
	for field := range reflect.TypeFor[Record]().Fields() {
		fields[field.Tag.Get("json")] = field.Index[0]
	}
	return fields
}()

// decodeMember sets a member from a valid value. Unknown members are ignored.
func (r *Record) decodeMember(name []byte, value []byte) error {
	field, known := members[string(name)]
	if !known {
		return nil
	}
	switch member := reflect.ValueOf(r).Elem().Field(field).Addr().Interface().(type) {
	case *json.RawMessage:
		*member = bytes.Clone(value)
		return nil
	case *string:
		if value[0] == '"' && utf8.Valid(value) {
			*member = string(rawjson.Unquote(value))
			return nil
		}
		return json.Unmarshal(value, member)
	default:
		return json.Unmarshal(value, member)
	}
}
