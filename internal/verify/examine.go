package verify

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// maxBodyBytes bounds the bodies of suspects that are held to find where they differ.
const maxBodyBytes = 64 << 20

// examination is the second pass over the lanes, for suspects alone.
type examination struct {
	*verification
	table  consumer.Table // of the suspects, with bodies
	bodies int            // bytes
	traces map[traceKey]*trace
	again  map[objectKey]string // the newest version at which an object was emitted again, in any lane
	seed   maphash.Seed
}

// objectKey is an object of a scope.
type objectKey struct {
	scope *scope
	key   consumer.Key
}

// traceKey is an object in a lane: records of an object that moved to another partition are in no order.
type traceKey struct {
	scope *scope
	key   consumer.Key
	lane  int
}

// trace follows the records of an object in a lane.
type trace struct {
	seen   map[uint64]uint64 // hashes of IDs, and of the contents that they came with first
	newest string            // version
	last   *Difference       // the last record, if it repeats an older one than the newest, or is none of the object
	// wrong are the records that are out of order or malformed, and behind which the object was not emitted again: the first
	// ones, and the number of others.
	wrong  []Difference
	others int
}

// maxTraced bounds the wrong records of an object that are held.
const maxTraced = 4

func (t *trace) addWrong(d Difference) {
	if len(t.wrong) < maxTraced {
		t.wrong = append(t.wrong, d)
	} else {
		t.others++
	}
}

// heal counts the wrong records as healed: a record follows that every consumer applies, whatever it has of the object.
func (t *trace) heal(r *ScopeResult) {
	r.Healed += len(t.wrong) + t.others
	t.wrong, t.others = nil, 0
}

// healOlder counts the wrong records as healed that are no newer than what another lane has of the object, where it was
// emitted again: consumers order records of different lanes by their versions.
func (t *trace) healOlder(again string, r *ScopeResult) {
	if again == "" || t.others > 0 {
		return
	}
	before := len(t.wrong)
	t.wrong = slices.DeleteFunc(t.wrong, func(d Difference) bool { return d.Kind == OutOfOrder && !isBefore(again, d.Stream) })
	r.Healed += before - len(t.wrong)
}

// traceOf returns the trace of an object in a lane.
func (e *examination) traceOf(at traceKey) *trace {
	t := e.traces[at]
	if t == nil {
		t = &trace{seen: map[uint64]uint64{}}
		e.traces[at] = t
	}
	return t
}

// examineSuspects reads the records of suspects again.
func examineSuspects(ctx context.Context, v *verification) error {
	suspects := 0
	for _, s := range v.scopes {
		if !s.isRefused() {
			suspects += len(s.suspects)
		}
	}
	if suspects == 0 {
		return nil
	}
	e := &examination{verification: v, traces: map[traceKey]*trace{}, again: map[objectKey]string{}, seed: maphash.MakeSeed()}
	if err := e.readLanes(ctx); err != nil {
		return err
	}
	for at, t := range e.traces {
		if t.last != nil {
			at.scope.result.addDifference(*t.last)
		}
		t.healOlder(e.again[objectKey{at.scope, at.key}], at.scope.result)
		for _, d := range t.wrong {
			at.scope.result.addDifference(d)
		}
		if t.others > 0 {
			*at.scope.result.counterOf(t.wrong[0].Kind) += t.others
		}
	}
	for _, s := range v.scopes {
		if !s.isRefused() && s.listed != nil {
			e.judgeScope(ctx, s)
		}
	}
	return ctx.Err()
}

// maxReplacedRounds bounds how often the ends of lanes are read again in which newer records replace older ones.
const maxReplacedRounds = 10

// readLanes reads the lanes up to the barriers. Where newer records replace older ones it goes on to the end, and again: a
// record may be replaced by one behind the end while it is being read.
func (e *examination) readLanes(ctx context.Context) error {
	spans := e.spansToBarriers()
	e.startPass(len(spans))
	if err := e.readSpans(ctx, spans); err != nil {
		return err
	}
	for range maxReplacedRounds {
		if !e.hasUnresolved() {
			return nil
		}
		lanes, err := e.Reader.StoredLanes(ctx, e.tail.target)
		if err != nil {
			return err
		}
		more := false
		for i := range spans {
			spans[i].From = spans[i].To
			if i < len(lanes) && lanes[i].Replaces {
				spans[i].To = max(spans[i].To, lanes[i].End)
			}
			more = more || spans[i].From < spans[i].To
		}
		if !more {
			return nil
		}
		if err := e.readSpans(ctx, spans); err != nil {
			return err
		}
	}
	return nil
}

func (e *examination) readSpans(ctx context.Context, spans []sinks.StoredSpan) error {
	return e.Reader.ReadStored(ctx, spans, func(stored sinks.StoredRecord) error {
		e.report("reading the records of what seems to differ again%s", e.ofTopic())
		r, ok := e.parser.parse(stored)
		if !ok {
			e.noteRemoval(stored)
			return nil
		}
		if s := e.scopeOf(&r); s != nil {
			e.examineRecord(s, &r, stored)
		}
		return nil
	})
}

// noteRemoval records that any object that is missing may have been removed behind the barrier.
func (e *examination) noteRemoval(stored sinks.StoredRecord) {
	for _, s := range e.scopes {
		if stored.RemovesUnnamed && !s.isRefused() && s.barrier != nil && stored.Position >= s.barrier.stops[stored.Lane] {
			s.removed = true
		}
	}
}

// hasUnresolved reports whether a suspect differs from the list, and no newer record of it was read.
func (e *examination) hasUnresolved() bool {
	for _, s := range e.scopes {
		if s.isRefused() || s.listed == nil {
			continue
		}
		for key := range s.suspects {
			stream := e.versionOf(s, key)
			if kind, _ := compareVersions(stream, s.listed[key]); kind != Equal && !s.isSkipped(key, stream) {
				return true
			}
		}
	}
	return false
}

// versionOf returns a suspect as the second pass has it, without its content.
func (e *examination) versionOf(s *scope, key consumer.Key) version {
	o, exists := e.table.Get(s.key.Resource, key)
	if !exists {
		return version{}
	}
	return version{uid: o.UID, resourceVersion: o.ResourceVersion}
}

func (e *examination) examineRecord(s *scope, r *record, stored sinks.StoredRecord) {
	key := consumer.Key{Namespace: r.Namespace, Name: r.Name}
	if s.hasPassed(r, stored) {
		if r.isObject() && !r.malformed && s.suspects[key] { // the record of its version at the barrier may have been replaced
			if s.newer == nil {
				s.newer = map[consumer.Key]bool{}
			}
			s.newer[key] = true
		}
		return
	}
	switch {
	case r.malformed:
		if s.suspects[key] {
			e.traceOf(traceKey{s, key, stored.Lane}).addWrong(e.newWrong(Malformed, r, stored))
		}
	case r.Watermark != nil:
		s.passed[passedMark{stored.Lane, r.Namespace}] = r.ResourceVersion
	case r.isObject() && s.suspects[key]:
		e.examineObject(traceKey{s, key, stored.Lane}, r, stored)
	case r.Gap != nil && isBefore(r.Gap.To, r.Gap.From):
		for at, t := range e.traces {
			if at.scope == s {
				t.newest = ""
			}
		}
		clear(s.passed)
		e.applyControl(&e.table, r)
	case !r.isObject():
		e.applyControl(&e.table, r)
	}
}

// examineObject traces a record of a suspect and applies it.
func (e *examination) examineObject(at traceKey, r *record, stored sinks.StoredRecord) {
	t := e.traceOf(at)
	id, content := maphash.String(e.seed, r.ID), maphash.Bytes(e.seed, r.After)
	first, repeated := t.seen[id]
	if t.last = nil; r.row { // the last row of a key is its state
		t.heal(at.scope.result)
	} else {
		e.traceRecord(at, r, stored, repeated)
	}
	if !repeated {
		t.seen[id] = content
	}
	if altered := repeated && first != content && e.parser.keyed && !r.truncated && r.ID != ""; altered || r.foreign || r.deformed {
		wrong := e.newWrong(Malformed, r, stored)
		t.last = &wrong
	}
	if r.foreign {
		return
	}
	if e.table.Apply(e.withBody(r, stored)) != nil {
		e.traceOf(at).addWrong(e.newWrong(Malformed, r, stored))
	}
}

// withBody returns a record with the body, or without it if there is no room for more.
func (e *examination) withBody(r *record, stored sinks.StoredRecord) consumer.Record {
	of := r.toApply(stored)
	if len(of.After) == 0 {
		return of
	}
	if e.bodies += len(of.After); e.Shape == nil || r.truncated || e.bodies > maxBodyBytes {
		of.After = anyBody
		return of
	}
	of.After = bytes.Clone(of.After)
	return of
}

// traceRecord finds out whether a record is older than one before it in its lane, and whether it was there before.
func (e *examination) traceRecord(at traceKey, r *record, stored sinks.StoredRecord, repeated bool) {
	t := e.traceOf(at)
	if r.isListed() && !repeated {
		t.newest = r.ResourceVersion
		if r.Snapshot != nil || r.Coalesced {
			t.heal(at.scope.result)
			of := objectKey{at.scope, at.key}
			if known := e.again[of]; known == "" || isBefore(known, r.ResourceVersion) {
				e.again[of] = r.ResourceVersion
			}
		}
		return
	}
	older := isBefore(r.ResourceVersion, t.newest)
	found := Difference{
		Kind: Repeated, Namespace: r.Namespace, Name: r.Name, Stream: r.ResourceVersion, Record: e.describePlace(stored), ID: r.ID,
	}
	switch {
	case repeated:
		at.scope.result.Repetitions++
		if older { // unless the newer ones are repeated, too
			t.last = &found
		}
	case older, at.scope.isLate(r, stored.Lane):
		found.Kind = OutOfOrder
		t.addWrong(found)
	}
	if !older {
		t.newest = r.ResourceVersion
	}
}

// judgeScope compares the suspects of a scope with the list, and finds where contents differ.
func (e *examination) judgeScope(ctx context.Context, s *scope) {
	contents := map[consumer.Key]Difference{}
	for key := range s.suspects {
		stream, listed := e.versionOf(s, key), s.listed[key]
		if s.isSkipped(key, stream) {
			s.result.Newer++
			continue
		}
		kind, path := compareVersions(stream, listed)
		if full, _ := e.streamVersion(s, key); kind == Equal && full.body != "" && listed.body != "" && full.body != listed.body {
			contents[key] = newDifference(Different, key, "", stream, listed)
			continue
		}
		if kind != Equal {
			s.result.addDifference(newDifference(kind, key, path, stream, listed))
		} else if listed.exists() {
			s.result.Equal++
		}
	}
	if len(contents) > 0 {
		e.compareContents(ctx, s, contents)
	}
}

// newDifference describes a difference between the stream and the cluster.
func newDifference(kind Kind, key consumer.Key, path string, stream, cluster version) Difference {
	d := Difference{Kind: kind, Namespace: key.Namespace, Name: key.Name, Path: path, Stream: stream.resourceVersion, Cluster: cluster.resourceVersion}
	if path == pathUID {
		d.Stream, d.Cluster = stream.uid, cluster.uid
	}
	return d
}

// compareContents lists the cluster again to find the first path at which the contents of objects differ. Contents that
// differ in the order of members only are equal.
func (e *examination) compareContents(ctx context.Context, s *scope, contents map[consumer.Key]Difference) {
	left := map[consumer.Key]Difference{}
	_, _, err := e.List(ctx, s.Scope, s.listPosition(), source.Reading{
		Begin: func(string) error { clear(left); return nil },
		Visit: func(o *deltas.Object) error {
			key := consumer.Key{Namespace: o.Namespace, Name: o.Name}
			d, differs := contents[key]
			if !differs || o.ResourceVersion != d.Cluster {
				return nil
			}
			body, err := e.Shape(s.Scope, o)
			if err != nil {
				return err
			}
			stream, _ := e.table.Get(s.key.Resource, key)
			d.Path = firstPath(withoutInvolved(s.Scope.Resource, stream.Body), body)
			left[key] = d
			return nil
		},
	})
	for key, d := range contents {
		if found, again := left[key]; again && err == nil {
			d = found
		} else {
			s.result.Note = fmt.Sprintf("where some contents differ is not known: the cluster could not be listed at %s again", s.listPosition())
		}
		if d.Path == samePath {
			s.result.Equal++
			continue
		}
		s.result.addDifference(d)
	}
}

// listPosition returns the exact version that was listed, or "" for the newest.
func (s *scope) listPosition() string {
	if s.listedAt != "" {
		return ""
	}
	return s.barrier.position
}

// samePath is the result of firstPath for equal contents. It is no JSON Pointer.
const samePath = "="

// firstPath returns the first location at which two contents differ; "" if that is not known.
func firstPath(stream, cluster []byte) string {
	if bytes.Equal(stream, cluster) {
		return samePath
	}
	if bytes.Equal(stream, anyBody) { // it was not held
		return ""
	}
	for _, d := range diff.Between(stream, cluster) {
		if d.Path != pathAPIVersion {
			return d.Path // "" for contents that cannot be compared
		}
	}
	return samePath
}
