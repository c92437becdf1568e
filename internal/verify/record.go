package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// record is a record of the verified cluster.
type record struct {
	consumer.Record
	row       bool // of a format of which readers use the last record of a key alone
	foreign   bool // under the key of the object, and no record of it
	deformed  bool // its value has another form than the format of the sink
	truncated bool // members of the object were omitted
	malformed bool // its members contradict each other; they are what it claims
}

// recordParser parses stored records. It shares texts between records, because a table keeps those of each object.
type recordParser struct {
	cluster string        // of the records that are parsed; "" for any
	format  format.Format // of the sink
	keyed   bool          // readers have the last record of a key
	shared  map[string]string
}

// writesRows reports whether values of a format are rows.
func writesRows(f format.Format) bool { return f == format.Upsert || f == format.Debezium }

// facts are the members that tables do not need.
type facts struct {
	Omitted []string `json:"omitted"`
}

// parse returns a record; ok is false if it is not about the verified cluster, or is a dead letter.
func (p *recordParser) parse(stored sinks.StoredRecord) (r record, ok bool) {
	s, ours := format.ReadStored(stored.Value, stored.Header)
	of, found := p.foreignUnder(stored)
	if found = found && p.keyed; found && !(ours && of.isNamedBy(s)) {
		return of, true
	}
	r, ok = p.parseContent(stored, s, ours)
	r.deformed = found && !p.hasForm(s, stored.Value)
	return r, ok
}

// parseContent returns a record with what it says of itself.
func (p *recordParser) parseContent(stored sinks.StoredRecord, s format.Stored, ours bool) (r record, ok bool) {
	if s.DeadLetter || s.Cluster == "" || p.cluster != "" && s.Cluster != p.cluster || s.Resource.Resource == "" {
		return r, false
	}
	switch {
	case !ours:
		r.malformed = s.ID != "" && s.Type != "" && s.Key != ""
		r.Record = recordOfRow(s)
		return r, r.malformed
	case s.Native == nil && !writesRows(p.format) && bytes.HasPrefix(stored.Value, nativeStart): // the headers contradict the value
		r.malformed, r.Record = true, recordOfRow(s)
		return r, true
	case s.Native == nil:
		r.row, r.Record = true, recordOfRow(s)
		r.truncated = strings.HasPrefix(string(s.After[:min(len(s.After), len(rowMark))]), rowMark)
	default:
		native, err := consumer.Parse(s.Native)
		if err != nil {
			r.malformed, r.Record = true, recordOfRow(s)
			return r, s.Key != ""
		}
		r.Record, r.row = native, len(stored.Value) == 0
		r.truncated = isTruncated(s.Native)
	}
	p.shareTexts(&r.Record)
	return r, true
}

// foreignUnder returns what a record is that stands under the key of an object of the cluster, and is none of it: without a
// value a delete. found is false if the key is of no object.
func (p *recordParser) foreignUnder(stored sinks.StoredRecord) (r record, found bool) {
	cluster, of, namespace, name := format.ParseKey(stored.Key)
	if name == "" || p.cluster != "" && cluster != p.cluster {
		return r, false
	}
	r.foreign, r.row = len(stored.Value) > 0, true
	r.Coalesced, r.Cluster, r.Group, r.Resource, r.Namespace, r.Name = true, cluster, of.Group, of.Resource, namespace, name
	if r.Type = string(event.Updated); !r.foreign {
		r.Type = string(event.Deleted)
	}
	return r, true
}

// isNamedBy reports whether a stored record is about the object.
func (r *record) isNamedBy(s format.Stored) bool {
	of := event.Resource{Group: r.Group, Resource: r.Resource}
	return s.Key == strings.TrimPrefix(r.Namespace+"/"+r.Name, "/") && s.Cluster == r.Cluster && s.Resource == of
}

// hasForm reports whether a value is what readers of the sink's format expect.
func (p *recordParser) hasForm(s format.Stored, value []byte) bool {
	isRow := len(s.After) == len(value)
	switch {
	case !writesRows(p.format) || len(value) == 0:
		return true
	case s.Native != nil || isRow != (p.format == format.Upsert) || s.Type == event.Deleted && len(s.After) > 0:
		return false
	}
	return value[0] == '{' && value[len(value)-1] == '}'
}

// nativeStart is how a native object begins. Objects of Kubernetes do not.
var nativeStart = []byte(`{"id":`)

// rowMark is how a truncated row begins.
const rowMark = `{"` + format.OmittedMember + `"`

// recordOfRow returns the record of a row. The last one of a key is its state, whatever version it has.
func recordOfRow(s format.Stored) consumer.Record {
	r := consumer.Record{
		ID: s.ID, Type: string(s.Type), Cluster: s.Cluster, Group: s.Resource.Group, Resource: s.Resource.Resource,
		Name: s.Key, UID: s.UID, ResourceVersion: s.ResourceVersion, Coalesced: true, After: s.After,
	}
	if namespace, name, namespaced := strings.Cut(s.Key, "/"); namespaced {
		r.Namespace, r.Name = namespace, name
	}
	return r
}

// isTruncated reports whether members of the object were omitted.
func isTruncated(native []byte) bool {
	var f facts
	if !strings.Contains(string(native[:min(len(native), maxFactBytes)]), `"omitted":[`) || json.Unmarshal(native, &f) != nil {
		return false
	}
	return len(f.Omitted) > 0
}

// maxFactBytes bounds the facts of a record, which precede its bodies.
const maxFactBytes = 16 << 10

// shareTexts lets the texts of a record share memory with each other and with those of other records.
func (p *recordParser) shareTexts(r *consumer.Record) {
	if rest, found := strings.CutPrefix(r.ID, r.Cluster+"/"+r.UID+"/"); found && r.UID != "" {
		at := len(r.ID) - len(rest)
		r.UID = r.ID[at-len(r.UID)-1 : at-1]
		if strings.HasPrefix(rest, r.ResourceVersion+"/") {
			r.ResourceVersion = rest[:len(r.ResourceVersion)]
		}
	}
	for _, text := range []*string{&r.Cluster, &r.Group, &r.Resource, &r.Version, &r.Namespace, &r.Type, &r.ListVersion} {
		*text = p.share(*text)
	}
	if r.Snapshot != nil {
		r.Snapshot.ID = p.share(r.Snapshot.ID)
	}
}

// maxShared bounds the texts that are shared.
const maxShared = 1 << 16

func (p *recordParser) share(text string) string {
	known, found := p.shared[text]
	switch {
	case found:
		return known
	case p.shared == nil:
		p.shared = map[string]string{}
	case len(p.shared) >= maxShared:
		clear(p.shared)
	}
	p.shared[text] = text
	return text
}

// toApply returns the record for a table: the last row of a key takes the place of those before, also of the same ID.
func (r *record) toApply(stored sinks.StoredRecord) consumer.Record {
	of := r.Record
	if r.row {
		of.ID = fmt.Sprint(stored.Lane, "@", stored.Position)
	}
	return of
}

// isObject reports whether the record is about the state of an object.
func (r *record) isObject() bool { return r.Name != "" && !event.Type(r.Type).IsBeside() }

// isListed reports whether a list showed the record, so that its version may be lower than what a watch showed before, or
// whether history was lost.
func (r *record) isListed() bool {
	return r.ListVersion != "" || r.Coalesced || r.Left || r.Snapshot != nil || r.Type == string(event.Sync)
}

// readVersion returns the newest version of the cluster that the record depends on.
func (r *record) readVersion() string {
	if isBefore(r.ResourceVersion, r.ListVersion) {
		return r.ListVersion
	}
	return r.ResourceVersion
}

// mark is one copy of a watermark in a lane.
type mark struct {
	consumer.Watermark
	position string // resourceVersion
	at       int64  // its position in the lane
	time     time.Time
}

// selection returns the fingerprint of what is selected in the epoch of the watermark.
func (m *mark) selection() string {
	_, fingerprint, _ := strings.Cut(m.Epoch, event.EpochSeparator)
	return fingerprint
}
