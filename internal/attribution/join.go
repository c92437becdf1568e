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
	NoEvent  Reason = "none"    // no audit event claims the change
	Several  Reason = "several" // more than one identity may have made it
	Late     Reason = "late"    // what claims it came after it had been seen: lost events, or clocks that differ
	Crowded  Reason = "bound"   // it had to make room
	Compared Reason = "list"    // a list told it, after history was lost: more than one write may be in it
)

// Reasons returns all of them.
func Reasons() []Reason { return []Reason{NoEvent, Several, Late, Crowded, Compared} }

// Conclusion is what is known of one change in the end.
type Conclusion struct {
	Change
	By          *Request // nil: unresolved, and Reason says why
	Likely      bool     // By is a guess
	Reason      Reason
	RequestedBy *Request // on a delete that another identity had asked for; nil else
}

// Limits bound a [Join].
type Limits struct {
	Settle time.Duration // how long the other claims of a change are waited for before the only one left is believed
	Window time.Duration // how long a change waits for a claim, and a claim for its change
	Skew   time.Duration // how far the clock of an API server may be ahead of ours
	Bytes  int           // bound of what is held, half of it for changes and half for requests
	Likely bool          // guesses are wanted where nothing is certain
}

// Join holds changes and requests that wait for each other. It looks at no clock and does no I/O: the same input gives the
// same output. It is not safe for concurrent use.
type Join struct {
	limits   Limits
	began    time.Time          // what came before counts as come at this time: an exporter that was away has to catch up first
	objects  map[string]*object // by UID
	changes  []*pending         // by offset
	packed   packed             // requests that no change has asked for
	requests []*held            // the others, by when they were asked for
	known    map[uint64]bool    // identities of both
	marks    newest[*Mark]      // by UID
	states   newest[stateAt]    // by UID
	names    newest[holder]     // by name
	answers  answers
	next     uint64 // number of the next request or mark
	bytes    struct{ changes, requests int }
	found    Findings // not yet fetched
	crowded  uint64   // requests that had to make room
}

// Findings are what a [Join] has concluded.
type Findings struct {
	Done  []Conclusion
	Marks []*Mark  // that are to be kept
	Drop  []uint64 // numbers of requests and marks that are not needed any more
}

// object is what waits of one object.
type object struct {
	changes []*pending // in order of versions, as the journal has them
	claims  []claim
}

type pending struct {
	Change
	addresses [4]address // where its claims wait packed
	decided   bool
	binds     bool      // gives a pod its node
	evicts    bool      // is one of those that an eviction makes
	keeps     bool      // leaves what the object waits for until it is deleted as it was
	ends      bool      // takes away what was waited for: the same request deletes the object
	since     time.Time // when the object was seen to have taken its name over from another one; zero where that is not known
	mark      *Mark     // of a delete: who had asked for it; nil where that is not known
}

// held is a request that waits for its changes.
type held struct {
	*Request
	identity uint64
	claims   []claim
	open     int // claims that still wait
	dropped  bool
}

// NewJoin returns an empty join.
func NewJoin(limits Limits) *Join {
	return &Join{
		limits: limits, objects: map[string]*object{}, packed: newPacked(), known: map[uint64]bool{}, next: 1,
		answers: newAnswers(), marks: keepNewest[*Mark](maxMarks), states: keepNewest[stateAt](maxKnown), names: keepNewest[holder](maxKnown),
	}
}

func (j *Join) object(uid string) *object {
	o := j.objects[uid]
	if o == nil {
		o = &object{}
		j.objects[uid] = o
	}
	return o
}

// Change takes a change. Offsets grow from call to call.
func (j *Join) Change(c Change) {
	p := &pending{Change: c, addresses: c.addresses()}
	before, known := j.learn(&p.Change)
	if known && c.Type == event.Updated {
		p.binds, p.evicts = c.bound && !before.bound, c.evicted && c.Marks == before.evicted
		p.keeps, p.ends = c.deleting && c.waits == before.waits, c.over && !before.over
	}
	if h, there := j.names.get(c.name()); there && h.uid == c.UID {
		p.since = h.since
	}
	if c.Type == event.Deleted {
		p.mark, _ = j.marks.take(c.UID)
	}
	o := j.object(c.UID)
	o.changes = append(o.changes, p)
	j.changes = append(j.changes, p)
	j.bytes.changes += changeSize
	for j.bytes.changes > j.limits.Bytes/2 && len(j.changes) > 0 {
		if oldest := j.changes[0]; !oldest.decided {
			j.conclude(oldest, finding{reason: Crowded})
		}
		j.changes = j.changes[1:]
	}
}

// Knows says whether an event is held already: API servers and shippers send some of them twice.
func (j *Join) Knows(r *Request) bool { return j.known[identityOf(r)] }

// identityOf is what no two events of different requests share. The audit ID alone is not: a client may choose it.
func identityOf(r *Request) uint64 {
	return maphash.Comparable(seed, struct {
		id, actor, verb, resource, namespace, name string
		received                                   audit.Time
	}{r.ID, r.Actor(), r.Verb, r.Resource, r.Namespace, r.Name, r.Received})
}

// Request takes a request. Where Number is 0 it gives it one. It says whether the request is held: one that claims nothing,
// or is held already, is not.
func (j *Join) Request(r *Request) bool {
	j.answers.take(r)
	h := j.held(r, identityOf(r))
	if len(h.claims) == 0 || j.known[h.identity] {
		return false
	}
	if r.Number == 0 {
		r.Number = j.Number()
	}
	j.Reserve(r.Number)
	j.known[h.identity] = true
	if len(h.claims) == 1 && r.encode() == nil {
		p := parcel{kept: r.kept, identity: h.identity, at: h.claims[0].address(), arrived: r.Arrived.UnixNano()}
		j.packed.put(r.Number, p)
		j.bytes.requests += p.size()
	} else {
		j.hold(h)
	}
	j.makeRoom()
	return true
}

func (j *Join) held(r *Request, identity uint64) *held {
	h := &held{Request: r, identity: identity}
	h.claims = claims(h, j.limits.Likely)
	h.open = len(h.claims)
	return h
}

// hold lets changes see a request.
func (j *Join) hold(h *held) {
	h.kept = nil
	j.requests = append(j.requests, h)
	j.bytes.requests += h.size()
	for _, c := range h.claims {
		o := j.object(c.at())
		o.claims = append(o.claims, c)
	}
}

// ask unpacks the requests that may have made a change.
func (j *Join) ask(of *pending) {
	for _, at := range of.addresses {
		for number := j.packed.first(at); number != 0; number = j.packed.first(at) {
			p := j.unpack(number)
			j.hold(j.held(p.request(number), p.identity))
		}
	}
}

// unpack removes a request from the packed ones.
func (j *Join) unpack(number uint64) parcel {
	p := j.packed.take(number)
	j.bytes.requests -= p.size()
	return p
}

// makeRoom lets go of the oldest requests while all take too much.
func (j *Join) makeRoom() {
	for j.bytes.requests > j.limits.Bytes/2 {
		if number, some := j.packed.oldest(); some && (len(j.requests) == 0 || number < j.requests[0].Number) {
			j.crowded++
			j.forget(number)
			continue
		}
		if oldest := j.requests[0]; !oldest.dropped {
			j.crowded++
			j.drop(oldest)
		}
		j.requests = j.requests[1:]
	}
}

// Reserve takes note of a number that something has.
func (j *Join) Reserve(number uint64) { j.next = max(j.next, number+1) }

// Number returns a number that nothing has.
func (j *Join) Number() uint64 {
	j.next++
	return j.next - 1
}

// forget lets go of a packed request.
func (j *Join) forget(number uint64) {
	delete(j.known, j.unpack(number).identity)
	j.found.Drop = append(j.found.Drop, number)
}

// drop lets go of a request and of all its claims.
func (j *Join) drop(h *held) {
	h.dropped = true
	j.bytes.requests -= h.size()
	delete(j.known, h.identity)
	j.found.Drop = append(j.found.Drop, h.Number)
	for _, c := range h.claims {
		if o := j.objects[c.at()]; o != nil {
			o.claims = slices.DeleteFunc(o.claims, func(c claim) bool { return c.held == h })
			j.tidy(c.at(), o)
		}
	}
}

// tidy forgets an object of which nothing waits.
func (j *Join) tidy(at string, o *object) {
	if len(o.changes) == 0 && len(o.claims) == 0 {
		delete(j.objects, at)
	}
}

// Decide concludes what can be concluded at a moment, and lets go of what has waited for too long.
func (j *Join) Decide(now time.Time) {
	for _, p := range j.changes {
		j.ask(p)
	}
	for _, p := range j.changes {
		if !p.decided {
			j.decide(p, now)
		}
	}
	for {
		oldest, some := j.packed.oldest()
		if !some || j.waited(j.packed.arrived(oldest), now) <= j.limits.Window {
			break
		}
		j.forget(oldest)
	}
	for _, h := range j.requests {
		if !h.dropped && j.waited(h.Arrived, now) > j.limits.Window {
			j.drop(h)
		}
	}
	j.changes = slices.DeleteFunc(j.changes, func(p *pending) bool { return p.decided })
	j.requests = slices.DeleteFunc(j.requests, func(h *held) bool { return h.dropped })
	j.makeRoom()
}

// waited is how long something has waited that came at a time.
func (j *Join) waited(since, now time.Time) time.Duration {
	if since.Before(j.began) {
		since = j.began
	}
	return now.Sub(since)
}

// Expire concludes every change that waits, as far as can be known now.
func (j *Join) Expire() {
	for _, p := range j.changes {
		if !p.decided {
			j.conclude(p, finding{reason: Crowded})
		}
	}
	j.changes = nil
}

// Waiting returns the offset of the oldest change that waits; false when none does.
func (j *Join) Waiting() (uint64, bool) {
	for _, p := range j.changes {
		if !p.decided {
			return p.Offset, true
		}
	}
	return 0, false
}

// Fetch returns what was concluded since the last call.
func (j *Join) Fetch() Findings {
	found := j.found
	j.found = Findings{}
	return found
}

// conclude ends the wait of a change, and of the claims that were of no other.
func (j *Join) conclude(p *pending, f finding) {
	p.decided = true
	j.ask(p)
	j.bytes.changes -= changeSize
	o := j.objects[p.UID]
	if p.Marks && f.by != nil && !f.likely {
		j.remember(o, p, f.by)
	}
	c := Conclusion{Change: p.Change, By: f.by, Likely: f.likely, Reason: f.reason}
	if p.mark != nil {
		if f.by != nil && p.mark.By.Actor() != f.by.Actor() {
			c.RequestedBy = p.mark.By
		}
		j.found.Drop = append(j.found.Drop, p.mark.Number)
	}
	j.found.Done = append(j.found.Done, c)
	o.changes = slices.DeleteFunc(o.changes, func(q *pending) bool { return q == p })
	j.settle(p.UID, p)
	j.settle(p.name(), p)
}

// settle lets go of the claims of what is decided, and of requests that have no other.
func (j *Join) settle(at string, p *pending) {
	o := j.objects[at]
	if o == nil {
		return
	}
	var over []*held
	o.claims = slices.DeleteFunc(o.claims, func(c claim) bool {
		if c.stays() || !c.concerns(p) {
			return false
		}
		if c.open--; c.open == 0 {
			over = append(over, c.held)
		}
		return true
	})
	for _, h := range over {
		j.drop(h)
	}
	j.tidy(at, o)
}
