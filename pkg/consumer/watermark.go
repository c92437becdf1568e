package consumer

import (
	"slices"
	"sort"

	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Watermark is the member watermark. Algorithm is "" if the stream does not have everything that the exporter knows.
type Watermark struct {
	Epoch     string `json:"epoch"`
	Sequence  uint64 `json:"sequence"`
	Lane      int    `json:"lane"`
	Lanes     int    `json:"lanes"`
	Algorithm string `json:"algorithm"`
	Count     int    `json:"count"`
	Digest    string `json:"digest"`
}

// Check is the result of comparing a table with the count and the digest of a watermark.
type Check string

// The results of a check.
const (
	CheckEqual     Check = "equal"     // the table held exactly the objects of the cluster at the position
	CheckDifferent Check = "different" // it did not: something is missing, too much, or in another version
	CheckNotMade   Check = "not made"  // the watermark has no digest, or the table was past the position in some lane
)

// digestAlgorithm is the only algorithm that this version knows.
const digestAlgorithm = "sha256-sum64/1"

// maxPendingWatermarks bounds the watermarks of a scope that some lanes have and others do not have yet. Beyond it the
// oldest is dropped.
const maxPendingWatermarks = 1024

// WatermarkStatus is how far a table is complete: it has had every change of the resource, or of its Namespace, up to
// Position.
type WatermarkStatus struct {
	Resource
	Namespace string // "" for all namespaces
	Position  string
	Epoch     string
	Sequence  uint64

	Check     Check  // of this watermark
	Want, Got int    // objects according to the watermark and to the table; only with a check
	Different uint64 // number of watermarks so far whose check found a difference
}

// Watermarks returns the newest watermark of each scope that was read from all lanes, in no particular order.
func (t *Table) Watermarks() []WatermarkStatus {
	var all []WatermarkStatus
	for name, s := range t.resources {
		for namespace, scope := range s.scopes {
			if newest := scope.complete; newest.Sequence > 0 {
				newest.Resource, newest.Namespace = name, namespace
				all = append(all, newest)
			}
		}
	}
	return all
}

// watermarkScope follows the watermarks of a resource or of one namespace of it. The sum over its rows is kept from the
// first watermark on.
type watermarkScope struct {
	sum     sum
	behind  int    // rows that are older than they were
	highest string // the newest version of the cluster that a record of the scope was read at

	pending  []*pendingWatermark // in the order of their first copies, which is that of reach
	late     sum                 // of all pending ones
	started  uint64              // number of pending watermarks so far
	skipped  uint64              // those with a number up to this are not checked
	complete WatermarkStatus     // Sequence is 0 if there is none
	past     map[string]uint64   // by epoch, the newest sequence that is complete, or was dropped
}

// sum is the number of existing objects, and the digest over them.
type sum struct {
	count  int
	digest digest
}

// sumOf returns by how much a sum changes when the row of a key is replaced; nil is none.
func sumOf(key Key, old, now *row) (s sum) {
	if old != nil && !old.deleted {
		s.digest.addObject(key, old.emitted, -1)
		s.count--
	}
	if now != nil && !now.deleted {
		s.digest.addObject(key, now.emitted, 1)
		s.count++
	}
	return s
}

// add adds another sum, or subtracts it if sign is -1.
func (s *sum) add(other sum, sign int) {
	s.count += sign * other.count
	for i := range s.digest {
		s.digest[i] += uint64(int64(sign)) * other.digest[i]
	}
}

// trackPeak records when the row was read at the latest. A record of a list without a version counts as read then.
func (now *row) trackPeak(old *row, r Record) {
	at := laterVersion(now.readVersion, now.resourceVersion)
	if now.peak = at; old == nil {
		return
	}
	now.peak = laterVersion(old.peak, at)
	now.behind = now.peak != at && (!r.isListed() || r.ListVersion != "")
}

// pendingWatermark is a watermark that some lanes have. It is compared with the objects as they were at its position: of
// lanes that have the watermark, what is read after it does not count.
type pendingWatermark struct {
	Watermark
	number   uint64
	position string
	reach    string       // the newest position so far; "" if there is none with an order, or none is checked
	seen     map[int]bool // lanes
	sum      sum          // without late, its own and that of those before it
	// late is of what was read since, from lanes that do not have the watermark yet, and that stands before it but not
	// before the previous one. It counts for this one and for all after it, so that a record changes one sum, however many
	// are pending.
	late      sum
	unchecked bool
}

// applyWatermark applies a copy of a watermark.
func (s *resourceState) applyWatermark(r Record) {
	w := s.scopeFor(r.Namespace)
	if w.isPast(r.Watermark) {
		return
	}
	at := slices.IndexFunc(w.pending, func(p *pendingWatermark) bool {
		return p.Epoch == r.Watermark.Epoch && p.Sequence == r.Watermark.Sequence && p.Lanes == r.Watermark.Lanes
	})
	if at < 0 {
		w.startPending(r)
		at = len(w.pending) - 1
	}
	p := w.pending[at]
	if p.seen[r.Watermark.Lane] = true; len(p.seen) < p.Lanes {
		return
	}
	p.sum.add(w.removePending(at), 1)
	w.recordComplete(p)
}

// scopeFor returns the scope of a namespace; "" is that of all.
func (s *resourceState) scopeFor(namespace string) *watermarkScope {
	w := s.scopes[namespace]
	if w != nil {
		return w
	}
	w = &watermarkScope{past: map[string]uint64{}}
	for key, row := range s.rows {
		if namespace == "" || namespace == key.Namespace {
			w.sum.add(sumOf(key, nil, row), 1)
			w.highest = laterVersion(w.highest, row.peak)
			if row.behind {
				w.behind++
			}
		}
	}
	s.scopes[namespace] = w
	return w
}

// startPending begins with the first copy of a watermark. The first lane that has it is the one that is read the furthest,
// so no lane is past the position.
func (w *watermarkScope) startPending(r Record) {
	if len(w.pending) == maxPendingWatermarks {
		w.markPast(w.pending[0])
		w.removePending(0)
	}
	order, ordered := resourceversion.Compare(w.highest, r.ResourceVersion)
	w.started++
	p := &pendingWatermark{
		Watermark: *r.Watermark, number: w.started, position: r.ResourceVersion, reach: r.ResourceVersion,
		seen: map[int]bool{}, sum: w.sum,
		unchecked: r.Watermark.Algorithm != digestAlgorithm || !resourceversion.IsOrdered(r.ResourceVersion) ||
			w.behind > 0 || w.highest != "" && (!ordered || order > 0),
	}
	p.sum.add(w.late, -1)
	if n := len(w.pending); n > 0 {
		w.orderAfter(p, w.pending[n-1])
	}
	w.pending = append(w.pending, p)
}

// orderAfter keeps the pending watermarks in the order of reach. A restored backup has lower versions: then those before are
// no longer checked.
func (w *watermarkScope) orderAfter(p, last *pendingWatermark) {
	switch order, ordered := resourceversion.Compare(last.reach, p.position); {
	case !ordered && !resourceversion.IsOrdered(p.position):
		p.reach = last.reach
	case order > 0:
		w.skipped = last.number
		for _, before := range w.pending {
			before.reach = ""
		}
	}
}

// removePending removes a pending watermark and those before it, which are complete, too, or never will be. Those of more
// lanes are later, and stay: the topic has grown, and its new partition may be read first. It returns what was read late for
// the watermark.
func (w *watermarkScope) removePending(at int) (late sum) {
	var left []*pendingWatermark
	var removed sum
	for _, p := range w.pending[:at+1] {
		if late.add(p.late, 1); p.Lanes > w.pending[at].Lanes {
			p.sum.add(removed, 1)
			left = append(left, p)
		} else {
			removed.add(p.late, 1)
		}
	}
	if after := w.pending[at+1:]; len(after) > 0 {
		after[0].late.add(removed, 1)
	} else {
		w.late.add(removed, -1)
	}
	if w.pending = w.pending[at+1:]; left != nil {
		w.pending = append(left, w.pending...)
	}
	return late
}

// markPast lets further copies of a watermark, and of those shortly before it in its epoch, be ignored.
func (w *watermarkScope) markPast(p *pendingWatermark) {
	if !w.isPast(&p.Watermark) {
		w.past[p.Epoch] = p.Sequence
	}
}

// isPast reports whether a watermark is complete or was dropped. One far before those is a new one: what was ahead of it was
// of another writer, or broken.
func (w *watermarkScope) isPast(m *Watermark) bool {
	past := w.past[m.Epoch]
	return m.Sequence == 0 || m.Sequence <= past && past-m.Sequence < maxPendingWatermarks
}

// recordComplete makes p, which was read from all lanes, the newest complete watermark.
func (w *watermarkScope) recordComplete(p *pendingWatermark) {
	w.markPast(p)
	now := WatermarkStatus{Position: p.position, Epoch: p.Epoch, Sequence: p.Sequence, Check: CheckNotMade, Different: w.complete.Different}
	if !p.unchecked && p.number > w.skipped {
		now.Check, now.Want, now.Got = CheckEqual, p.Count, p.sum.count
		if p.sum.count != p.Count || p.sum.digest.String() != p.Digest {
			now.Check = CheckDifferent
			now.Different++
		}
	}
	w.complete = now
}

// updateScopes updates the sums of the scopes of a key whose row is replaced because of a record.
func (s *resourceState) updateScopes(key Key, old, now *row, r Record) {
	all := s.scopesOf(key)
	if len(all) == 0 {
		return
	}
	changes := (old == nil || old.emitted != now.emitted) && (old != nil || !now.deleted)
	var change sum
	if changes {
		change = sumOf(key, old, now)
	}
	for _, w := range all {
		w.highest = laterVersion(w.highest, now.peak)
		if old != nil && old.behind {
			w.behind--
		}
		if now.behind {
			w.behind++
		}
		if changes {
			w.addChange(change, now, r)
		}
	}
}

// addChange adds what a record changes to the sums of those that it stands before. Which watermarks a record of a list
// stands before is not certain, and while records are repeated rows are older than they were: then no check is made.
func (w *watermarkScope) addChange(change sum, now *row, r Record) {
	if w.sum.add(change, 1); len(w.pending) == 0 {
		return
	}
	if r.isListed() || now.behind || !resourceversion.IsOrdered(now.peak) {
		w.skipChecks()
		return
	}
	first := sort.Search(len(w.pending), func(i int) bool {
		order, ordered := resourceversion.Compare(w.pending[i].reach, now.peak)
		return ordered && order >= 0
	})
	if first < len(w.pending) {
		w.pending[first].late.add(change, 1)
		w.late.add(change, 1)
	}
}

// skipChecks leaves the pending watermarks unchecked.
func (w *watermarkScope) skipChecks() { w.skipped = w.started }

// skipChecks leaves the pending watermarks unchecked, because objects may be gone without a record of their own.
func (s *resourceState) skipChecks() {
	for _, w := range s.scopes {
		w.skipChecks()
	}
}

// skipChecksAt leaves the pending watermarks unchecked that stand behind a dropped record and before that of the row: what
// the object was at their positions is not known.
func (s *resourceState) skipChecksAt(key Key, old *row, dropped Record) {
	at := laterVersion(dropped.readVersion(), dropped.ResourceVersion)
	for _, w := range s.scopesOf(key) {
		behind := sort.Search(len(w.pending), func(i int) bool { return resourceversion.Order(w.pending[i].reach, old.peak) > 0 })
		if behind > 0 && resourceversion.Order(at, w.pending[behind-1].reach) <= 0 {
			w.skipped = max(w.skipped, w.pending[behind-1].number)
		}
	}
}

// resetSums computes the digests again, because versions were lowered.
func (s *resourceState) resetSums() {
	for namespace, old := range s.scopes {
		delete(s.scopes, namespace)
		w := s.scopeFor(namespace)
		w.pending, w.late, w.started, w.complete, w.past = old.pending, old.late, old.started, old.complete, old.past
		w.skipChecks()
	}
}

func (s *resourceState) scopesOf(key Key) (all []*watermarkScope) {
	if w := s.scopes[""]; w != nil {
		all = append(all, w)
	}
	if w := s.scopes[key.Namespace]; w != nil && key.Namespace != "" {
		all = append(all, w)
	}
	return all
}

// isListed reports whether a list showed the record, not a watch.
func (r Record) isListed() bool {
	return r.ListVersion != "" || r.Coalesced || r.Snapshot != nil || r.Type == "sync"
}

// laterVersion returns the later of two versions; the second if they have no order.
func laterVersion(a, b string) string {
	if b == "" || resourceversion.Order(a, b) > 0 {
		return a
	}
	return b
}
