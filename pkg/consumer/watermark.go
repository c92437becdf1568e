package consumer

import (
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

	pending  []*pendingWatermark // in the order of their first copies
	complete WatermarkStatus     // Sequence is 0 if there is none
	past     map[string]bool     // epochs before that of complete
}

// sum is the number of existing objects, and the digest over them.
type sum struct {
	count  int
	digest digest
}

// replaceRow replaces the row of a key; nil is none.
func (s *sum) replaceRow(key Key, old, now *row) {
	if old != nil && !old.deleted {
		s.digest.addObject(key, old.emitted, -1)
		s.count--
	}
	if now != nil && !now.deleted {
		s.digest.addObject(key, now.emitted, 1)
		s.count++
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

// pendingWatermark is a watermark that some lanes have. The sum is over the objects as they were at its position: of lanes
// that have the watermark, what is read after it does not count.
type pendingWatermark struct {
	Watermark
	position  string
	seen      map[int]bool // lanes
	sum       sum
	unchecked bool
}

// applyWatermark applies a copy of a watermark.
func (s *resourceState) applyWatermark(r Record) {
	w := s.scopeFor(r.Namespace)
	if w.past[r.Watermark.Epoch] || r.Watermark.Epoch == w.complete.Epoch && r.Watermark.Sequence <= w.complete.Sequence {
		return
	}
	at := -1
	for i, p := range w.pending {
		if p.Epoch == r.Watermark.Epoch && p.Sequence == r.Watermark.Sequence && p.Lanes == r.Watermark.Lanes {
			at = i
		}
	}
	if at < 0 {
		w.startPending(r)
		at = len(w.pending) - 1
	}
	p := w.pending[at]
	if p.seen[r.Watermark.Lane] = true; len(p.seen) < p.Lanes {
		return
	}
	w.pending = w.pending[at+1:] // those before it are complete too, or never will be
	w.recordComplete(p)
}

// scopeFor returns the scope of a namespace; "" is that of all.
func (s *resourceState) scopeFor(namespace string) *watermarkScope {
	w := s.scopes[namespace]
	if w != nil {
		return w
	}
	w = &watermarkScope{past: map[string]bool{}}
	for key, row := range s.rows {
		if namespace == "" || namespace == key.Namespace {
			w.sum.replaceRow(key, nil, row)
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
		w.pending = w.pending[1:]
	}
	order, ordered := resourceversion.Compare(w.highest, r.ResourceVersion)
	w.pending = append(w.pending, &pendingWatermark{
		Watermark: *r.Watermark, position: r.ResourceVersion, seen: map[int]bool{}, sum: w.sum,
		unchecked: r.Watermark.Algorithm != digestAlgorithm || w.behind > 0 || w.highest != "" && (!ordered || order > 0),
	})
}

// recordComplete makes p, which was read from all lanes, the newest complete watermark.
func (w *watermarkScope) recordComplete(p *pendingWatermark) {
	if w.complete.Epoch != "" && w.complete.Epoch != p.Epoch {
		w.past[w.complete.Epoch] = true
	}
	now := WatermarkStatus{Position: p.position, Epoch: p.Epoch, Sequence: p.Sequence, Check: CheckNotMade, Different: w.complete.Different}
	if !p.unchecked {
		now.Check, now.Want, now.Got = CheckEqual, p.Count, p.sum.count
		if p.sum.count != p.Count || p.sum.digest.String() != p.Digest {
			now.Check = CheckDifferent
			now.Different++
		}
	}
	w.complete = now
}

// updateScopes updates the sums of the scopes of a key whose row is replaced because of a record. Which watermarks a record
// of a list stands before is not certain, and while records are repeated rows are older than they were: then no check is
// made.
func (s *resourceState) updateScopes(key Key, old, now *row, r Record) {
	for _, w := range s.scopesOf(key) {
		w.highest = laterVersion(w.highest, now.peak)
		if old != nil && old.behind {
			w.behind--
		}
		if now.behind {
			w.behind++
		}
		if old != nil && old.emitted == now.emitted || old == nil && now.deleted {
			continue
		}
		w.sum.replaceRow(key, old, now)
		for _, p := range w.pending {
			switch order, ordered := resourceversion.Compare(now.peak, p.position); {
			case !ordered || r.isListed() || now.behind:
				p.unchecked = true
			case order <= 0:
				p.sum.replaceRow(key, old, now)
			}
		}
	}
}

// skipChecks leaves the pending watermarks unchecked, because objects may be gone without a record of their own.
func (s *resourceState) skipChecks() {
	for _, w := range s.scopes {
		for _, p := range w.pending {
			p.unchecked = true
		}
	}
}

// resetSums computes the digests again, because versions were lowered.
func (s *resourceState) resetSums() {
	for namespace, old := range s.scopes {
		delete(s.scopes, namespace)
		w := s.scopeFor(namespace)
		w.pending, w.complete, w.past = old.pending, old.complete, old.past
	}
	s.skipChecks()
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
	if b == "" || compareVersions(a, b) > 0 {
		return a
	}
	return b
}
