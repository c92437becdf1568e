package attribution

import (
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Reason is why a change is unresolved. It is a label value of a metric: the set is small and stable.
type Reason string

// The reasons.
const (
	NoEvent       Reason = "none"       // no audit event claims the change
	SeveralActors Reason = "several"    // more than one identity may have made it
	TooLate       Reason = "late"       // the claims arrived at the API server after the change was observed: lost events or clock skew
	Evicted       Reason = "bound"      // it was resolved early because of a bound on memory or the journal
	Lagging       Reason = "lag"        // audit events arrive later than Limits.Settle allows for, so contradicting ones may be missing
	Unstamped     Reason = "stamp"      // there is no other evidence than stamps, and the write was not stamped
	Unproven      Reason = "policy"     // the same, and it is not proven that the admission policy was in force
	Disagreement  Reason = "disagree"   // the stamp and the audit log name different users
	Unannotated   Reason = "annotation" // its only requests may have changed nothing, and the admission policy has not noted whether they did
	FromList      Reason = "list"       // a list revealed it after lost history, so it may stand for several writes
)

// Reasons returns all reasons.
func Reasons() []Reason {
	return []Reason{NoEvent, SeveralActors, TooLate, Lagging, Evicted, Unstamped, Unproven, Disagreement, Unannotated, FromList}
}

// Resolution is the final result for one change.
type Resolution struct {
	Change
	By          *Request // nil: unresolved, see Reason
	Reason      Reason   // set if By is nil
	ByStamp     bool     // a stamp proves By; it may be in the audit log, too
	RequestedBy *Request // of a delete that another identity had requested; nil otherwise
}

// Limits bound a [Matcher].
type Limits struct {
	Settle time.Duration // how long a single claim waits for contradicting ones before it is accepted
	Window time.Duration // how long a change waits for a claim, and a claim for its change
	Skew   time.Duration // how far the clock of an API server may be ahead of ours
	Bytes  int           // bound of memory, half for changes and half for requests
	// NoEvents is set if no source of audit events is configured: only stamps name authors.
	NoEvents bool
}

// Matcher matches changes with the audited requests that made them. Both wait for each other, in any order. It reads no
// clock and does no I/O: the same input gives the same output. It is not safe for concurrent use.
type Matcher struct {
	limits    Limits
	startedAt time.Time // what arrived earlier counts as arrived at this time, because a restarted exporter first has to catch up
	changes   changeQueue
	requests  *requestPool
	history   objectHistory
	answers   versionTimes
	lag       sourceLag
	resolver  resolver
	proof     stampProof   // of the admission policy; nil without stamps
	unproven  bool         // a change waits for a newer proof
	next      uint64       // number of the next request, mark or loss
	resolved  []Resolution // since the last call of TakeFindings
	newMarks  []*DeleteMark
	dropped   []uint64
}

// Findings are what a [Matcher] has found since the last call of [Matcher.TakeFindings].
type Findings struct {
	Resolved []Resolution
	Marks    []*DeleteMark // to be stored
	Bound    []*Request    // to be stored again, with the object that they are about
	Drop     []uint64      // numbers of stored requests, marks and losses that are not needed any more
}

// NewMatcher returns an empty matcher.
func NewMatcher(limits Limits) *Matcher {
	m := &Matcher{
		limits:  limits,
		changes: changeQueue{byUID: map[string][]*pendingChange{}, byName: map[string][]*pendingChange{}, gone: map[string]bool{}},
		history: objectHistory{
			marks: newRecentMap[*DeleteMark](maxMarks), states: newRecentMap[versionedState](maxKnownStates),
			names: newRecentMap[nameHolder](maxKnownStates),
		},
		answers: newVersionTimes(), lag: sourceLag{bySource: newRecentMap[*originLag](maxLagSources), remember: limits.Window}, next: 1,
	}
	m.requests = &requestPool{
		limits: &m.limits, answers: &m.answers, encoded: newEncodedQueue(), claims: map[string][]claim{}, known: map[uint64]bool{},
	}
	m.resolver = resolver{limits: &m.limits, changes: &m.changes, requests: m.requests, answers: &m.answers}
	return m
}

// AddChange adds a change. Offsets must grow from call to call.
func (m *Matcher) AddChange(c Change) {
	p := m.recordChange(c)
	if c.Type == event.Deleted {
		p.mark = m.history.removeMark(c.UID)
	}
	m.changes.addChange(p)
	for m.changes.bytes > m.limits.Bytes/2 && len(m.changes.all) > 0 {
		if oldest := m.changes.all[0]; !oldest.resolved {
			m.finishChange(oldest, verdict{reason: Evicted})
		}
		m.changes.all = m.changes.all[1:]
	}
}

// recordChange records what a change shows, eligible for attribution or not, for those that wait and for those that follow.
// It returns the change with what earlier ones show of its object.
func (m *Matcher) recordChange(c Change) *pendingChange {
	p := &pendingChange{Change: c, addresses: c.addresses()}
	m.answers.recordReached(c.Version)
	before, known := m.history.recordChange(&p.Change)
	if known && c.Type == event.Updated {
		p.binds, p.evicts = c.bound && !before.bound, c.evicted && c.Marks == before.evicted
		p.keepsDeletion, p.endsGrace = c.deleting && c.deletionHash == before.deletionHash, c.deletable && !before.deletable
	}
	holder := m.history.nameHolder(&p.Change)
	p.nameSince, p.creation = holder.since, holder.creation
	m.changes.recordLater(p, p.binds || !known && c.bound, p.evicts || !known && c.evicted)
	return p
}

// NumberRequest assigns a number to a request that has arrived, and marks it if it arrived later than contradicting claims
// are waited for. It returns false if the matcher holds the request already: API servers and log shippers send some events
// twice.
func (m *Matcher) NumberRequest(r *Request) bool {
	if m.requests.known[identityOf(r)] {
		return false
	}
	r.Number = m.NextNumber()
	if lag := m.lag.recordArrival(r); lag > m.limits.Settle {
		r.Lag = lag
	}
	return true
}

// AddRequest adds a request and assigns a number to it if Number is 0. It returns false, and keeps nothing, if the request
// claims nothing or is held already.
func (m *Matcher) AddRequest(r *Request) bool {
	m.answers.recordAnswer(r)
	w := m.requests.newWaiting(r, identityOf(r))
	if len(w.claims) == 0 || m.requests.known[w.identity] {
		return false
	}
	if r.Number == 0 {
		m.NumberRequest(r)
	}
	m.ReserveNumber(r.Number)
	m.requests.addRequest(w)
	return true
}

// ReserveNumber marks a number as used.
func (m *Matcher) ReserveNumber(number uint64) { m.next = max(m.next, number+1) }

// NextNumber returns an unused number and marks it as used.
func (m *Matcher) NextNumber() uint64 {
	m.next++
	return m.next - 1
}

// DropNumbers adds numbers of stored evidence to [Findings.Drop].
func (m *Matcher) DropNumbers(numbers ...uint64) { m.dropped = append(m.dropped, numbers...) }

// AddDeleteMark adds a mark, such as one that an earlier process stored.
func (m *Matcher) AddDeleteMark(mark *DeleteMark) {
	m.ReserveNumber(mark.Number)
	if evicted, full := m.history.marks.putNewest(mark.UID, mark); full {
		m.DropNumbers(evicted.Number)
	}
}

// Resolve resolves the changes that can be resolved at this time, and drops the requests that have waited for too long.
func (m *Matcher) Resolve(now time.Time) {
	for _, p := range m.changes.all {
		m.requests.decodeFor(p)
	}
	late := m.lag.current(now) > m.limits.Settle
	m.unproven = false
	for _, p := range m.changes.all {
		if !p.resolved {
			m.resolveChange(p, now, late)
		}
	}
	m.requests.dropExpired(func(arrived time.Time) bool { return m.waitedSince(arrived, now) > m.limits.Window }, m.changes.isClaimed)
	m.changes.all = slices.DeleteFunc(m.changes.all, func(p *pendingChange) bool { return p.resolved })
}

// SourceLag returns by how much audit events are late at this time.
func (m *Matcher) SourceLag(now time.Time) time.Duration { return m.lag.current(now) }

// resolveChange resolves a change if it is time to. An author that later events may contradict is accepted only if all
// events are here: after Settle, and never while sources lag behind by more than that.
func (m *Matcher) resolveChange(p *pendingChange, now time.Time, late bool) {
	age := m.waitedSince(p.Observed, now)
	if mark := m.changes.precedingMark(p); mark != nil && age <= m.limits.Window {
		return // resolve the mark first: its claims may be those of the delete
	}
	v := m.resolver.resolveAuthor(p)
	stamped := m.judgeStamp(p)
	settled := m.limits.NoEvents || age > m.limits.Settle && !late
	if age <= m.limits.Window && stamped.mustWait(v, settled, &m.limits) {
		return
	}
	v = m.combineEvidence(p, v, stamped, settled)
	lagging := v.by != nil && !v.final && late
	if v.by != nil && !lagging && (v.final || age > m.limits.Settle) || v.final || age > m.limits.Window {
		if lagging {
			v = verdict{reason: Lagging}
		}
		m.finishChange(p, v)
	}
}

// waitedSince returns for how long something has waited that arrived at since.
func (m *Matcher) waitedSince(since, now time.Time) time.Duration {
	if since.Before(m.startedAt) {
		since = m.startedAt
	}
	return now.Sub(since)
}

// ResolveAll resolves every waiting change as [Evicted].
func (m *Matcher) ResolveAll() {
	for _, p := range m.changes.all {
		if !p.resolved {
			m.finishChange(p, verdict{reason: Evicted})
		}
	}
	m.changes.all = nil
}

// finishChange resolves a change and releases the claims that can be of no other.
func (m *Matcher) finishChange(p *pendingChange, v verdict) {
	m.requests.decodeFor(p)
	if v.final && v.by != nil {
		m.lag.compareClocks(v.by, p.Observed)
	}
	if p.Marks && v.by != nil {
		m.recordDeleteMark(p, v.by)
	}
	r := Resolution{Change: p.Change, By: v.by, Reason: v.reason, ByStamp: v.stamp}
	if p.mark != nil {
		if v.by != nil && p.mark.By.Actor() != v.by.Actor() {
			r.RequestedBy = p.mark.By
		}
		m.DropNumbers(p.mark.Number)
	}
	m.resolved = append(m.resolved, r)
	m.changes.markResolved(p)
	m.requests.bindClaims(p)
	m.requests.releaseClaims(p)
	if m.changes.isOver(p) {
		m.requests.closeClaims(p.UID)
	}
}

// recordDeleteMark records the author of a deletion request until the object is gone. If the delete is already waiting, the
// mark goes to that change.
func (m *Matcher) recordDeleteMark(p *pendingChange, by *Request) {
	mark := &DeleteMark{Number: m.NextNumber(), UID: p.UID, By: by, Deletes: p.deletable && by.Subresource == "eviction"}
	m.newMarks = append(m.newMarks, mark)
	for _, d := range m.changes.byUID[p.UID] {
		if d.Type == event.Deleted {
			d.mark = mark
			return
		}
	}
	m.AddDeleteMark(mark)
}

// TakeFindings returns the findings since the last call.
func (m *Matcher) TakeFindings() Findings {
	f := Findings{Resolved: m.resolved, Marks: m.newMarks, Drop: append(m.dropped, m.requests.dropped...)}
	for _, w := range m.requests.bound {
		if !w.dropped {
			f.Bound = append(f.Bound, w.Request)
		}
	}
	m.resolved, m.newMarks, m.dropped, m.requests.dropped, m.requests.bound = nil, nil, nil, nil, nil
	return f
}

// waitingBytes estimates the memory of waiting changes and requests.
func (m *Matcher) waitingBytes() int { return m.changes.bytes + m.requests.bytes }

type pendingChange struct {
	Change
	addresses     [4]waitAddress // where its claims wait in encoded form
	resolved      bool
	binds         bool           // gives a pod its node
	evicts        bool           // is one of the changes that an eviction makes
	keepsDeletion bool           // leaves everything that the deletion waits for as it was
	endsGrace     bool           // removes the last thing that the deletion waited for: the same request deletes the object
	nameSince     time.Time      // when the creation of the object was observed; zero: it was not
	creation      string         // the version of its creation; "" if that was not observed
	later         *pendingChange // the first change of the same kind of a later object of the name; nil: none
	mark          *DeleteMark    // of a delete: the request for it; nil if unknown
}

type changeQueue struct {
	all    []*pendingChange            // by offset; resolved ones until the next Resolve
	byUID  map[string][]*pendingChange // the unresolved ones of an object, in order of versions
	byName map[string][]*pendingChange // the same by object name key
	gone   map[string]bool             // UIDs whose delete is resolved, and an eviction of which waits
	bytes  int                         // estimated memory of the unresolved ones
}

func (q *changeQueue) addChange(p *pendingChange) {
	q.all = append(q.all, p)
	q.byUID[p.UID] = append(q.byUID[p.UID], p)
	name := p.objectName()
	q.byName[name] = append(q.byName[name], p)
	q.bytes += changeSize
}

// recordLater records in the waiting changes of earlier objects of the same name that a later one was or may have been
// bound, or evicted.
func (q *changeQueue) recordLater(later *pendingChange, binds, evicts bool) {
	if !binds && !evicts {
		return
	}
	for _, p := range q.byName[later.objectName()] {
		if p.UID != later.UID && p.later == nil && (binds && p.binds || evicts && p.evicts) {
			p.later = later
		}
	}
}

// markResolved ends the wait of a change. It stays in all until the next Resolve.
func (q *changeQueue) markResolved(p *pendingChange) {
	p.resolved = true
	q.bytes -= changeSize
	removeChange(q.byUID, p.UID, p)
	removeChange(q.byName, p.objectName(), p)
}

func removeChange(from map[string][]*pendingChange, key string, p *pendingChange) {
	left := slices.DeleteFunc(from[key], func(other *pendingChange) bool { return other == p })
	if len(left) == 0 {
		delete(from, key)
		return
	}
	from[key] = left
}

// isClaimed reports whether a change waits that the request of a claim may have made. By the name alone it may have made
// any.
func (q *changeQueue) isClaimed(c claim) bool {
	waiting := q.byUID[c.uid]
	if c.uid == "" {
		waiting = q.byName[c.name]
	}
	return slices.ContainsFunc(waiting, func(p *pendingChange) bool { return c.kind == byUnseen || c.matchesChange(p) })
}

// isOver reports whether the object of a resolved change is gone, and no change waits that an eviction of it made.
func (q *changeQueue) isOver(p *pendingChange) bool {
	if p.Type != event.Deleted && !q.gone[p.UID] {
		return false
	}
	if slices.ContainsFunc(q.byUID[p.UID], func(c *pendingChange) bool { return c.evicts }) {
		q.gone[p.UID] = true
		return false
	}
	delete(q.gone, p.UID)
	return true
}

// precedingMark returns the waiting change that marked the object which p deletes, or ended its grace; nil if there is none.
func (q *changeQueue) precedingMark(p *pendingChange) *pendingChange {
	if p.Type != event.Deleted || p.Previous == "" {
		return nil
	}
	for _, c := range q.byUID[p.UID] {
		if (c.Marks || c.endsGrace) && c.Version == p.Previous {
			return c
		}
	}
	return nil
}

// Change is what a [Matcher] needs of one change of the stream. It shares no memory with the record that it was made from.
type Change struct {
	Offset          uint64
	ID              string
	Cluster         string
	Resource        event.Resource
	Namespace, Name string
	Type            event.Type // Added, Updated or Deleted
	UID             string
	Version         string // resourceVersion
	Previous        string // the version before; "" if not known
	Marks           bool   // sets the deletionTimestamp
	Observed        time.Time
	Stamp           *event.Stamp // of the write, if it is one of the version before; nil otherwise
	Held            *event.HeldInfo

	objectState      // after the change
	hasState    bool // objectState is known
}

// objectName returns the object name key, which objects that had the name one after the other share.
func (c *Change) objectName() string {
	return objectNameKey(c.Resource.Group, c.Resource.Resource, c.Namespace, c.Name)
}

// objectNameKey returns a key for the name of an object. It never equals a UID.
func objectNameKey(group, resource, namespace, name string) string {
	return group + "/" + resource + "/" + namespace + "/" + name
}

// ChangeOf returns the change in a record of the journal. eligible is false for a record that is not the result of a single
// write: control records, changes that a list revealed, versions that are emitted again, and attributions.
func ChangeOf(r event.Record) (c Change, eligible bool) {
	of := r.Change
	if of.Held != nil && of.Held.Released || of.UID == "" || of.OnlySink != "" || of.Type == event.Attributed || of.Type.IsControl() {
		return Change{}, false
	}
	switch of.Type {
	case event.Added, event.Updated, event.Deleted:
		eligible = !of.Coalesced && !of.FinalStateUnknown && !of.Left
	default: // no request makes the others
	}
	c = Change{
		Offset: r.Offset, ID: of.ID(), Cluster: strings.Clone(of.Cluster), Resource: cloneResource(of.Resource),
		Namespace: strings.Clone(of.Namespace), Name: strings.Clone(of.Name),
		Type: of.Type, UID: strings.Clone(of.UID), Version: strings.Clone(of.ResourceVersion), Previous: strings.Clone(of.Previous),
		Marks: of.Class == event.ClassDeleting, Observed: of.ObservedAt,
	}
	if of.Held != nil {
		c.Held = (&event.Change{Held: of.Held}).Clone().Held
	}
	if eligible && isStampOf(of) {
		c.Stamp = &event.Stamp{User: strings.Clone(of.Stamp.User), Replaced: c.Previous}
	}
	c.objectState, c.hasState = readState(of)
	return c, eligible
}

// isStampOf reports whether the stamp names the version before of this object as the one that was replaced. Otherwise an
// earlier write left it, or it is a copy of another object's.
func isStampOf(c *event.Change) bool {
	switch {
	case c.Stamp == nil:
		return false
	case c.Type == event.Added:
		return c.Previous == "" && c.Stamp.IsOf("", c.Resource, c.Namespace, c.Name)
	}
	return c.Type == event.Updated && c.Previous != "" && c.Stamp.IsOf(c.Previous, c.Resource, c.Namespace, c.Name)
}

func cloneResource(r event.Resource) event.Resource {
	return event.Resource{
		Group: strings.Clone(r.Group), Version: strings.Clone(r.Version),
		Resource: strings.Clone(r.Resource), Kind: strings.Clone(r.Kind),
	}
}

// changeSize estimates the memory that a change takes in a [Matcher], in bytes.
const changeSize = 900
