package consumer

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

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
