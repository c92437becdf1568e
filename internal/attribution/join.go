package attribution

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Reason says why a change is unresolved. It is the value of a label of a metric: few, and stable.
type Reason string

// The reasons.
const (
	NoEvent       Reason = "none"    // no audit event claims the change
	SeveralActors Reason = "several" // more than one identity may have made it
	TooLate       Reason = "late"    // what claims it came after it had been seen: lost events, or clocks that differ
	Evicted       Reason = "bound"   // it had to make room
	FromList      Reason = "list"    // a list told it, after history was lost: more than one write may be in it
)

// Reasons returns all of them.
func Reasons() []Reason { return []Reason{NoEvent, SeveralActors, TooLate, Evicted, FromList} }

// Resolution is what is known of one change in the end.
type Resolution struct {
	Change
	By          *Request // nil: unresolved, and Reason says why
	Likely      bool     // By is a guess
	Reason      Reason
	RequestedBy *Request // on a delete that another identity had asked for; nil else
}

// Limits bound a [Matcher].
type Limits struct {
	Settle time.Duration // how long the other claims of a change are waited for before the only one left is believed
	Window time.Duration // how long a change waits for a claim, and a claim for its change
	Skew   time.Duration // how far the clock of an API server may be ahead of ours
	Bytes  int           // bound of what is held, half of it for changes and half for requests
	Likely bool          // guesses are wanted where nothing is certain
}

// Matcher holds changes and requests that wait for each other. It looks at no clock and does no I/O: the same input gives the
// same output. It is not safe for concurrent use.
type Matcher struct {
	limits    Limits
	startedAt time.Time                 // what came before counts as come at this time: an exporter that was away has to catch up first
	objects   map[string]*objectQueue   // by UID
	changes   []*pendingChange          // by offset
	encoded   encodedQueue              // requests that no change has asked for
	requests  []*waitingRequest         // the others, by when they were asked for
	known     map[uint64]bool           // identities of both
	marks     recentMap[*DeleteMark]    // by UID
	states    recentMap[versionedState] // by UID
	names     recentMap[nameHolder]     // by name
	answers   versionTimes
	next      uint64 // number of the next request or mark
	bytes     struct{ changes, requests int }
	findings  Findings // not yet fetched
	evicted   uint64   // requests that had to make room
}

// Findings are what a [Matcher] has concluded.
type Findings struct {
	Resolved []Resolution
	Marks    []*DeleteMark // that are to be kept
	Drop     []uint64      // numbers of requests and marks that are not needed any more
}

// objectQueue is what waits of one object.
type objectQueue struct {
	changes []*pendingChange // in order of versions, as the journal has them
	claims  []claim
}

type pendingChange struct {
	Change
	addresses     [4]waitAddress // where its claims wait packed
	resolved      bool
	binds         bool        // gives a pod its node
	evicts        bool        // is one of those that an eviction makes
	keepsDeletion bool        // leaves what the object waits for until it is deleted as it was
	endsGrace     bool        // takes away what was waited for: the same request deletes the object
	nameSince     time.Time   // when the object was seen to have taken its name over from another one; zero where that is not known
	mark          *DeleteMark // of a delete: who had asked for it; nil where that is not known
}

// waitingRequest is a request that waits for its changes.
type waitingRequest struct {
	*Request
	identity uint64
	claims   []claim
	open     int // claims that still wait
	dropped  bool
}

// NewMatcher returns an empty join.
func NewMatcher(limits Limits) *Matcher {
	return &Matcher{
		limits: limits, objects: map[string]*objectQueue{}, encoded: newEncodedQueue(), known: map[uint64]bool{}, next: 1,
		answers: newVersionTimes(), marks: newRecentMap[*DeleteMark](maxMarks), states: newRecentMap[versionedState](maxKnownStates), names: newRecentMap[nameHolder](maxKnownStates),
	}
}

func (j *Matcher) object(uid string) *objectQueue {
	o := j.objects[uid]
	if o == nil {
		o = &objectQueue{}
		j.objects[uid] = o
	}
	return o
}

// AddChange takes a change. Offsets grow from call to call.
func (j *Matcher) AddChange(c Change) {
	p := &pendingChange{Change: c, addresses: c.addresses()}
	before, known := j.recordState(&p.Change)
	if known && c.Type == event.Updated {
		p.binds, p.evicts = c.bound && !before.bound, c.evicted && c.Marks == before.evicted
		p.keepsDeletion, p.endsGrace = c.deleting && c.deletionHash == before.deletionHash, c.deletable && !before.deletable
	}
	if h, there := j.names.get(c.objectName()); there && h.uid == c.UID {
		p.nameSince = h.since
	}
	if c.Type == event.Deleted {
		p.mark, _ = j.marks.remove(c.UID)
	}
	o := j.object(c.UID)
	o.changes = append(o.changes, p)
	j.changes = append(j.changes, p)
	j.bytes.changes += changeSize
	for j.bytes.changes > j.limits.Bytes/2 && len(j.changes) > 0 {
		if oldest := j.changes[0]; !oldest.resolved {
			j.finishChange(oldest, verdict{reason: Evicted})
		}
		j.changes = j.changes[1:]
	}
}

// HasRequest says whether an event is held already: API servers and shippers send some of them twice.
func (j *Matcher) HasRequest(r *Request) bool { return j.known[identityOf(r)] }

// identityOf is what no two events of different requests share. The audit ID alone is not: a client may choose it.
func identityOf(r *Request) uint64 {
	return maphash.Comparable(seed, struct {
		id, actor, verb, resource, namespace, name string
		received                                   audit.Time
	}{r.ID, r.Actor(), r.Verb, r.Resource, r.Namespace, r.Name, r.Received})
}

// AddRequest takes a request. Where Number is 0 it gives it one. It says whether the request is held: one that claims nothing,
// or is held already, is not.
func (j *Matcher) AddRequest(r *Request) bool {
	j.answers.recordAnswer(r)
	h := j.newWaitingRequest(r, identityOf(r))
	if len(h.claims) == 0 || j.known[h.identity] {
		return false
	}
	if r.Number == 0 {
		r.Number = j.NextNumber()
	}
	j.ReserveNumber(r.Number)
	j.known[h.identity] = true
	if len(h.claims) == 1 && r.encodeEvidence() == nil {
		p := encodedRequest{data: r.encoded, identity: h.identity, at: h.claims[0].address(), arrived: r.Arrived.UnixNano()}
		j.encoded.addRequest(r.Number, p)
		j.bytes.requests += p.size()
	} else {
		j.addWaiting(h)
	}
	j.evictOldest()
	return true
}

func (j *Matcher) newWaitingRequest(r *Request, identity uint64) *waitingRequest {
	h := &waitingRequest{Request: r, identity: identity}
	h.claims = claimsOfRequest(h, j.limits.Likely)
	h.open = len(h.claims)
	return h
}

// addWaiting lets changes see a request.
func (j *Matcher) addWaiting(h *waitingRequest) {
	h.encoded = nil
	j.requests = append(j.requests, h)
	j.bytes.requests += h.size()
	for _, c := range h.claims {
		o := j.object(c.waitKey())
		o.claims = append(o.claims, c)
	}
}

// decodeRequestsFor unpacks the requests that may have made a change.
func (j *Matcher) decodeRequestsFor(of *pendingChange) {
	for _, at := range of.addresses {
		for number := j.encoded.firstAt(at); number != 0; number = j.encoded.firstAt(at) {
			p := j.removeEncoded(number)
			j.addWaiting(j.newWaitingRequest(p.decodeRequest(number), p.identity))
		}
	}
}

// removeEncoded removes a request from the packed ones.
func (j *Matcher) removeEncoded(number uint64) encodedRequest {
	p := j.encoded.removeRequest(number)
	j.bytes.requests -= p.size()
	return p
}

// evictOldest lets go of the oldest requests while all take too much.
func (j *Matcher) evictOldest() {
	for j.bytes.requests > j.limits.Bytes/2 {
		if number, some := j.encoded.oldestNumber(); some && (len(j.requests) == 0 || number < j.requests[0].Number) {
			j.evicted++
			j.dropEncoded(number)
			continue
		}
		if oldest := j.requests[0]; !oldest.dropped {
			j.evicted++
			j.dropRequest(oldest)
		}
		j.requests = j.requests[1:]
	}
}

// ReserveNumber takes note of a number that something has.
func (j *Matcher) ReserveNumber(number uint64) { j.next = max(j.next, number+1) }

// NextNumber returns a number that nothing has.
func (j *Matcher) NextNumber() uint64 {
	j.next++
	return j.next - 1
}

// dropEncoded lets go of a packed request.
func (j *Matcher) dropEncoded(number uint64) {
	delete(j.known, j.removeEncoded(number).identity)
	j.findings.Drop = append(j.findings.Drop, number)
}

// dropRequest lets go of a request and of all its claims.
func (j *Matcher) dropRequest(h *waitingRequest) {
	h.dropped = true
	j.bytes.requests -= h.size()
	delete(j.known, h.identity)
	j.findings.Drop = append(j.findings.Drop, h.Number)
	for _, c := range h.claims {
		if o := j.objects[c.waitKey()]; o != nil {
			o.claims = slices.DeleteFunc(o.claims, func(c claim) bool { return c.waitingRequest == h })
			j.removeIfEmpty(c.waitKey(), o)
		}
	}
}

// removeIfEmpty forgets an object of which nothing waits.
func (j *Matcher) removeIfEmpty(at string, o *objectQueue) {
	if len(o.changes) == 0 && len(o.claims) == 0 {
		delete(j.objects, at)
	}
}

// Resolve concludes what can be concluded at a moment, and lets go of what has waited for too long.
func (j *Matcher) Resolve(now time.Time) {
	for _, p := range j.changes {
		j.decodeRequestsFor(p)
	}
	for _, p := range j.changes {
		if !p.resolved {
			j.resolveChange(p, now)
		}
	}
	for {
		oldest, some := j.encoded.oldestNumber()
		if !some || j.waitedSince(j.encoded.arrivalTime(oldest), now) <= j.limits.Window {
			break
		}
		j.dropEncoded(oldest)
	}
	for _, h := range j.requests {
		if !h.dropped && j.waitedSince(h.Arrived, now) > j.limits.Window {
			j.dropRequest(h)
		}
	}
	j.changes = slices.DeleteFunc(j.changes, func(p *pendingChange) bool { return p.resolved })
	j.requests = slices.DeleteFunc(j.requests, func(h *waitingRequest) bool { return h.dropped })
	j.evictOldest()
}

// waitedSince is how long something has waited that came at a time.
func (j *Matcher) waitedSince(since, now time.Time) time.Duration {
	if since.Before(j.startedAt) {
		since = j.startedAt
	}
	return now.Sub(since)
}

// ResolveAll concludes every change that waits, as far as can be known now.
func (j *Matcher) ResolveAll() {
	for _, p := range j.changes {
		if !p.resolved {
			j.finishChange(p, verdict{reason: Evicted})
		}
	}
	j.changes = nil
}

// OldestWaiting returns the offset of the oldest change that waits; false when none does.
func (j *Matcher) OldestWaiting() (uint64, bool) {
	for _, p := range j.changes {
		if !p.resolved {
			return p.Offset, true
		}
	}
	return 0, false
}

// TakeFindings returns what was concluded since the last call.
func (j *Matcher) TakeFindings() Findings {
	found := j.findings
	j.findings = Findings{}
	return found
}

// finishChange ends the wait of a change, and of the claims that were of no other.
func (j *Matcher) finishChange(p *pendingChange, f verdict) {
	p.resolved = true
	j.decodeRequestsFor(p)
	j.bytes.changes -= changeSize
	o := j.objects[p.UID]
	if p.Marks && f.by != nil && !f.likely {
		j.recordDeleteMark(o, p, f.by)
	}
	c := Resolution{Change: p.Change, By: f.by, Likely: f.likely, Reason: f.reason}
	if p.mark != nil {
		if f.by != nil && p.mark.By.Actor() != f.by.Actor() {
			c.RequestedBy = p.mark.By
		}
		j.findings.Drop = append(j.findings.Drop, p.mark.Number)
	}
	j.findings.Resolved = append(j.findings.Resolved, c)
	o.changes = slices.DeleteFunc(o.changes, func(q *pendingChange) bool { return q == p })
	j.releaseClaims(p.UID, p)
	j.releaseClaims(p.objectName(), p)
}

// releaseClaims lets go of the claims of what is decided, and of requests that have no other.
func (j *Matcher) releaseClaims(at string, p *pendingChange) {
	o := j.objects[at]
	if o == nil {
		return
	}
	var over []*waitingRequest
	o.claims = slices.DeleteFunc(o.claims, func(c claim) bool {
		if c.isReusable() || !c.matchesChange(p) {
			return false
		}
		if c.open--; c.open == 0 {
			over = append(over, c.waitingRequest)
		}
		return true
	})
	for _, h := range over {
		j.dropRequest(h)
	}
	j.removeIfEmpty(at, o)
}
