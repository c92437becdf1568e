package verify

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source/involved"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

const (
	// maxDeleted bounds the deleted objects that the table keeps. A record that is repeated after they were removed may bring
	// one back; the second pass finds that out.
	maxDeleted = 1 << 20
	// maxSuspects bounds the objects of a scope that the second pass examines.
	maxSuspects = 100_000
)

// anyBody stands for a body that is not compared.
var anyBody = []byte("{}")

// foldLanes reads all lanes from their beginnings up to the copies of the barriers, into the table.
func (v *verification) foldLanes(ctx context.Context) error {
	spans := v.spansToBarriers()
	total := int64(0)
	for _, s := range spans {
		total += s.To - s.From
	}
	v.startPass(len(spans))
	deleted := 0
	return v.Reader.ReadStored(ctx, spans, func(stored sinks.StoredRecord) error {
		v.read++
		v.report("read %d of %d records%s", v.read, total, v.ofTopic())
		r, ok := v.parser.parse(stored)
		if !ok {
			return nil
		}
		s := v.scopeOf(&r)
		if s == nil || s.hasPassed(&r, stored) {
			return nil
		}
		v.foldRecord(s, &r, stored)
		if r.Type == string(event.Deleted) {
			if deleted++; deleted >= maxDeleted {
				v.table.RemoveDeleted()
				deleted = 0
			}
		}
		return nil
	})
}

// startPass begins a pass over the lanes.
func (v *verification) startPass(lanes int) {
	v.lanes = lanes
	for _, s := range v.scopes {
		s.startPass(lanes)
	}
}

func (s *scope) startPass(lanes int) {
	s.stops, s.passed = make([]bool, lanes), map[passedMark]string{}
}

// spansToBarriers returns the lanes from their beginnings up to the last barrier in each.
func (v *verification) spansToBarriers() []sinks.StoredSpan {
	spans := make([]sinks.StoredSpan, len(v.tail.lanes))
	for i, l := range v.tail.lanes {
		spans[i] = sinks.StoredSpan{StoredLane: l, From: l.First}
		if v.streamOnly {
			spans[i].To = l.End
		}
		for _, s := range v.scopes {
			if !s.isRefused() && s.barrier != nil {
				spans[i].To = max(spans[i].To, s.barrier.stops[i])
			}
		}
	}
	return spans
}

// hasPassed reports whether the lane of a record is past the barrier, which is the first copy of its watermark there. The
// copy itself is not.
func (s *scope) hasPassed(r *record, stored sinks.StoredRecord) bool {
	if s.barrier == nil { // the whole lane is read
		return false
	}
	if s.stops[stored.Lane] || stored.Position >= s.barrier.stops[stored.Lane] {
		return true
	}
	w := r.Watermark
	s.stops[stored.Lane] = w != nil && w.Epoch == s.barrier.Epoch && w.Sequence == s.barrier.Sequence && w.Lanes == s.barrier.Lanes
	return false
}

// foldRecord applies a record to the table, and notes what the second pass has to look at.
func (v *verification) foldRecord(s *scope, r *record, stored sinks.StoredRecord) {
	if _, known := s.oldest[stored.Lane]; !known {
		s.oldest[stored.Lane] = r.readVersion()
	}
	switch {
	case r.malformed:
		v.noteMalformed(s, r, stored)
		return
	case r.Watermark != nil:
		s.passed[passedMark{stored.Lane, r.Namespace}] = r.ResourceVersion
	case r.Type == string(event.Gap):
		s.addGap(r.Gap)
	case r.Type == string(event.SnapshotEnd):
		s.ends[r.Snapshot.ID] = r.Snapshot.Position
	case r.isObject():
		v.foldObject(s, r, stored)
		return
	}
	v.applyControl(&v.table, r)
}

// applyControl applies a control record to a table. Readers of rows do not see those that change a table.
func (v *verification) applyControl(table *consumer.Table, r *record) {
	if !r.row || r.Watermark != nil {
		_ = table.Apply(r.Record) // fails for objects only
	}
}

func (v *verification) describePlace(stored sinks.StoredRecord) string {
	return fmt.Sprintf("%s@%d", describeLane(v.tail.lanes[stored.Lane]), stored.Position)
}

// addGap adds a gap that was not read yet: a restart may repeat it.
func (s *scope) addGap(g *consumer.Gap) {
	if isBefore(g.To, g.From) { // a restored backup counts from lower versions
		clear(s.passed)
	}
	for _, known := range s.result.Gaps {
		if known.From == g.From && known.To == g.To {
			return
		}
	}
	s.result.Gaps = append(s.result.Gaps, GapResult(*g))
}

func (v *verification) foldObject(s *scope, r *record, stored sinks.StoredRecord) {
	key := consumer.Key{Namespace: r.Namespace, Name: r.Name}
	if r.foreign {
		v.noteMalformed(s, r, stored)
		return
	}
	if s.listedAt != "" && isAfter(r.readVersion(), s.listedAt) && !isAfter(r.ResourceVersion, s.barrier.position) {
		s.newer[key] = true
	}
	if len(r.After) > 0 {
		r.After = v.reduceBody(r)
	}
	name := s.key.Resource
	before, existed := v.table.Get(name, key)
	if v.table.Apply(r.toApply(stored)) != nil {
		v.noteMalformed(s, r, stored)
		return
	}
	altered := existed && r.ResourceVersion == before.ResourceVersion && r.UID == before.UID && !bytes.Equal(r.After, before.Body)
	if r.deformed || v.parser.keyed && altered {
		s.suspect(key)
	}
	if r.row {
		return
	}
	now, exists := v.table.Get(name, key)
	listed := r.isListed() // and may be older, unless consumers passed over it
	older := existed && isBefore(r.ResourceVersion, before.ResourceVersion) && (!listed || now.ResourceVersion == before.ResourceVersion)
	again := existed && r.ResourceVersion == before.ResourceVersion && r.UID == before.UID && r.Type != string(event.Deleted)
	dropped := !existed && !exists && r.Type != string(event.Deleted)
	if older || dropped || !listed && (again || s.isLate(r, stored.Lane)) {
		s.suspect(key)
	}
}

// noteMalformed lets the second pass look whether the object was emitted again behind a malformed record.
func (v *verification) noteMalformed(s *scope, r *record, stored sinks.StoredRecord) {
	if r.Name == "" || !s.suspect(consumer.Key{Namespace: r.Namespace, Name: r.Name}) {
		s.result.addDifference(v.newWrong(Malformed, r, stored))
	}
}

func (v *verification) newWrong(kind Kind, r *record, stored sinks.StoredRecord) Difference {
	return Difference{Kind: kind, Namespace: r.Namespace, Name: r.Name, ID: r.ID, Record: v.describePlace(stored)}
}

// passedMark is the newest watermark of a namespace, "" for all, in a lane.
type passedMark struct {
	lane      int
	namespace string
}

// isLate reports whether a watermark that covers the version of a record is before it in its lane.
func (s *scope) isLate(r *record, lane int) bool {
	for _, namespace := range []string{"", r.Namespace} {
		if passed := s.passed[passedMark{lane, namespace}]; passed != "" && !isAfter(r.ResourceVersion, passed) {
			return true
		}
	}
	return false
}

// reduceBody returns what the table keeps of a body: a hash if contents are compared.
func (v *verification) reduceBody(r *record) []byte {
	switch {
	case v.Shape == nil && !v.parser.keyed:
		return anyBody
	case r.truncated:
		return truncatedBody
	}
	of := event.Resource{Group: r.Group, Resource: r.Resource}
	return []byte(diff.Hash(withoutInvolved(of, r.After), pathAPIVersion[1:]))
}

// withoutInvolved returns the contents of an object in the stream without what an Event has of another one.
func withoutInvolved(r event.Resource, body []byte) []byte {
	if !selection.IsEvents(r) {
		return body
	}
	return involved.Remove(body, "")
}

// truncatedBody stands for the body of a record that was truncated. It is shorter than a hash.
var truncatedBody = []byte("truncated")

// suspect lets the second pass examine an object. It reports whether there was room for it.
func (s *scope) suspect(key consumer.Key) bool {
	if len(s.suspects) < maxSuspects || s.suspects[key] {
		s.suspects[key] = true
		return true
	}
	s.result.Note = fmt.Sprintf("only the first %d objects that have repeated records or differ were examined", maxSuspects)
	return false
}

// streamVersion returns an object as the stream has it. The body is "" if it cannot be compared.
func (v *verification) streamVersion(s *scope, key consumer.Key) (of version, truncated bool) {
	o, exists := v.table.Get(s.key.Resource, key)
	if !exists {
		return version{}, false
	}
	of = version{uid: o.UID, resourceVersion: o.ResourceVersion}
	switch {
	case v.Shape == nil:
	case len(o.Body) == len(truncatedBody):
		truncated = true
	default:
		of.body = string(o.Body)
	}
	return of, truncated
}

// isSkipped reports whether an object is known to be newer than the list, or may be the one that was removed since. A
// version beyond the watermark is not: what was read up to there has none.
func (s *scope) isSkipped(key consumer.Key, stream version) bool {
	return s.newer[key] || s.removed && !stream.exists() || s.listedAt != "" && isAfter(stream.resourceVersion, s.listedAt) &&
		!isAfter(stream.resourceVersion, s.barrier.position)
}

// collectSuspects compares the table with the list, and marks what differs for the second pass.
func (v *verification) collectSuspects(s *scope) {
	s.result.Objects = len(s.listed)
	differs := func(key consumer.Key, stream version) {
		if s.suspects[key] { // for its order: the second pass compares it, too
			return
		}
		if s.isSkipped(key, stream) {
			s.result.Newer++
			return
		}
		kind, path := compareVersions(stream, s.listed[key])
		switch {
		case kind == Equal:
			s.result.Equal++
		case !s.suspect(key):
			s.result.addDifference(newDifference(kind, key, path, stream, s.listed[key]))
		}
	}
	for key := range s.listed {
		stream, truncated := v.streamVersion(s, key)
		if truncated {
			s.result.Truncated++
		}
		differs(key, stream)
	}
	for _, o := range v.table.Objects(s.key.Resource) {
		_, listed := s.listed[o.Key]
		if isOwn := s.key.namespace == "" || s.key.namespace == o.Key.Namespace; isOwn && !listed { // a ghost
			stream, _ := v.streamVersion(s, o.Key)
			differs(o.Key, stream)
		}
	}
}
