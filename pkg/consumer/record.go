package consumer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Record is a native object (docs/events.md), reduced to the members that a table needs. A table retains After and does not
// modify it.
type Record struct {
	ID                string          `json:"id"`
	Type              string          `json:"type"`
	Cluster           string          `json:"cluster"`
	Group             string          `json:"group"`
	Version           string          `json:"version"`
	Resource          string          `json:"resource"`
	Namespace         string          `json:"namespace"`
	Name              string          `json:"name"`
	UID               string          `json:"uid"`
	ResourceVersion   string          `json:"resourceVersion"`
	ListVersion       string          `json:"listVersion"`
	ObservedAt        time.Time       `json:"observedAt"`
	ChangedAt         *ChangedAt      `json:"changedAt"`
	Coalesced         bool            `json:"coalesced"`
	FinalStateUnknown bool            `json:"finalStateUnknown"`
	Left              bool            `json:"left"`
	Snapshot          *Snapshot       `json:"snapshot"`
	Gap               *Gap            `json:"gap"`
	Watermark         *Watermark      `json:"watermark"`
	Changed           []Difference    `json:"changed"`
	DeadLetter        json.RawMessage `json:"deadLetter"`
	After             json.RawMessage `json:"after"`
}

// ChangedAt is the member changedAt: the change was made between NotBefore, if that is not zero, and At.
type ChangedAt struct {
	At        time.Time `json:"at"`
	NotBefore time.Time `json:"notBefore"`
	Source    string    `json:"source"` // audit, managedFields, deletion or watch
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
	order := compareVersions(a, b)
	return order < 0 || order == 0 && observedA.Before(observedB)
}

// compareVersions orders two resourceVersions of one resource. It returns 0 for versions that cannot be ordered, which an
// aggregated API may have; the later record is then the newer one.
func compareVersions(a, b string) int {
	order, _ := resourceversion.Compare(a, b)
	return order
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
		if err := r.decodeMember(string(m.Key), value[begin:m.I]); err != nil {
			return err
		}
	}
	return rawjson.CheckEnd(value, m.I)
}

// decodeMember sets a member from a valid value. Members that a Record does not have are ignored.
func (r *Record) decodeMember(name string, value []byte) error {
	if name == "after" {
		r.After = bytes.Clone(value)
		return nil
	}
	text := r.textMember(name)
	if text != nil && value[0] == '"' && utf8.Valid(value) {
		*text = string(rawjson.Unquote(value))
		return nil
	}
	if text != nil {
		return json.Unmarshal(value, text)
	}
	if member := r.otherMember(name); member != nil {
		return json.Unmarshal(value, member)
	}
	return nil
}

// textMember returns the member of a name if that is a text.
func (r *Record) textMember(name string) *string {
	switch name {
	case "id":
		return &r.ID
	case "type":
		return &r.Type
	case "cluster":
		return &r.Cluster
	case "group":
		return &r.Group
	case "version":
		return &r.Version
	case "resource":
		return &r.Resource
	case "namespace":
		return &r.Namespace
	case "name":
		return &r.Name
	case "uid":
		return &r.UID
	case "resourceVersion":
		return &r.ResourceVersion
	case "listVersion":
		return &r.ListVersion
	}
	return nil
}

// otherMember returns a pointer to the member of a name if that is neither a text nor the state after the change.
func (r *Record) otherMember(name string) any {
	switch name {
	case "observedAt":
		return &r.ObservedAt
	case "changedAt":
		return &r.ChangedAt
	case "coalesced":
		return &r.Coalesced
	case "finalStateUnknown":
		return &r.FinalStateUnknown
	case "left":
		return &r.Left
	case "snapshot":
		return &r.Snapshot
	case "gap":
		return &r.Gap
	case "watermark":
		return &r.Watermark
	case "changed":
		return &r.Changed
	case "deadLetter":
		return &r.DeadLetter
	}
	return nil
}
