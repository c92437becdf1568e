package attribution

import (
	"hash/maphash"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// objectState is the part of an object's state that identifies bindings, evictions and deletions. The answer to a binding
// or an eviction does not name the object, but each of them changes something that no other request changes. A delete of an
// object that is being deleted already changes what the deletion waits for, and nothing else.
type objectState struct {
	bound        bool      // a pod with a node: only a binding gives one to an existing pod
	evicted      bool      // a pod with the condition that an eviction sets before it deletes
	deleting     bool      // has a deletionTimestamp
	deletable    bool      // a deleting pod that nothing delays: the request that left it so also deletes it
	deletionHash uint64    // hash of deletionTimestamp, grace period and finalizers
	created      time.Time // when it certainly existed: creationTimestamp plus its precision; zero if unknown
}

func isPod(r event.Resource) bool { return r.Group == "" && r.Resource == "pods" }

var seed = maphash.MakeSeed()

// readState reads the state after a change. ok is false if the change has no body.
func readState(c *event.Change) (s objectState, ok bool) {
	if len(c.After) == 0 {
		return objectState{}, false
	}
	pod := isPod(c.Resource)
	for name, value := range rawjson.Value(c.After).Members() {
		switch {
		case string(name) == "metadata":
			s.readMetadata(value)
		case string(name) == "spec" && pod:
			s.bound = value.Member("nodeName").Text() != ""
		case string(name) == "status" && pod:
			s.evicted = hasEvictionCondition(value.Member("conditions"))
		}
	}
	s.deletable = s.deletable && pod
	return s, true
}

func (s *objectState) readMetadata(metadata rawjson.Value) {
	var held, grace bool
	for name, value := range metadata.Members() {
		switch string(name) {
		case "creationTimestamp":
			if t, err := time.Parse(time.RFC3339, value.Text()); err == nil {
				s.created = t.Add(creationPrecision)
			}
			continue
		case "deletionTimestamp":
			s.deleting = value.IsText()
		case "deletionGracePeriodSeconds":
			grace = value[0] != '0'
		case "finalizers":
			held = value[0] == '['
		default:
			continue
		}
		s.deletionHash += maphash.Bytes(seed, name) ^ maphash.Bytes(seed, value)
	}
	s.deletable = s.deleting && !held && !grace
}

// hasEvictionCondition reports whether the conditions include the one that an eviction sets.
func hasEvictionCondition(conditions rawjson.Value) bool {
	for one := range conditions.Elements() {
		if one.Member("type").Text() == "DisruptionTarget" && one.Member("reason").Text() == "EvictionByEvictionAPI" {
			return true
		}
	}
	return false
}

// encodedQueue holds requests in their stored form until a change has their address. Most events of an audit log never meet
// a change, and every garbage collection scans what waits and delays the stream. Therefore a request is a single allocation
// without pointers here (DESIGN.md).
type encodedQueue struct {
	all    map[uint64]encodedRequest // by number
	queues map[waitAddress]addressQueue
	lowest uint64 // lower bound of all numbers
}

// encodedRequest is an encoded request with exactly one claim.
type encodedRequest struct {
	data     []byte
	identity uint64
	at       waitAddress
	next     uint64 // number of the next one at the same address; 0: none
	arrived  int64  // Unix nanoseconds
}

// waitAddress is the hash under which a claim waits for its change. A collision only decodes a request early.
type waitAddress uint64

// addressOf returns the address of claims under a wait key. version is the change's version, or with before its previous
// one; "" if the claim is of any version.
func addressOf(at, version string, before bool) waitAddress {
	return waitAddress(maphash.Comparable(seed, struct {
		at, version string
		before      bool
	}{at, version, before}))
}

func (c *claim) address() waitAddress {
	return addressOf(c.waitKey(), c.version, c.kind == byRelease || c.kind == byMark)
}

// addresses returns the addresses of all claims that can match a change.
func (c *Change) addresses() [4]waitAddress {
	return [4]waitAddress{
		addressOf(c.UID, "", false), addressOf(c.objectName(), "", false),
		addressOf(c.UID, c.Version, false), addressOf(c.UID, c.Previous, true),
	}
}

// addressQueue has the first and the last number at an address.
type addressQueue struct{ first, last uint64 }

func newEncodedQueue() encodedQueue {
	return encodedQueue{all: map[uint64]encodedRequest{}, queues: map[waitAddress]addressQueue{}}
}

// size estimates the memory of an encoded request with its map entries, in bytes.
func (e *encodedRequest) size() int { return 280 + len(e.data) }

// addRequest adds a request under a number that is not in use.
func (q *encodedQueue) addRequest(number uint64, of encodedRequest) {
	if len(q.all) == 0 || number < q.lowest {
		q.lowest = number
	}
	q.all[number] = of
	at, found := q.queues[of.at]
	if !found {
		at.first = number
	} else {
		last := q.all[at.last]
		last.next = number
		q.all[at.last] = last
	}
	at.last = number
	q.queues[of.at] = at
}

// firstAt returns the number of the first request at an address; 0 if there is none.
func (q *encodedQueue) firstAt(at waitAddress) uint64 { return q.queues[at].first }

// oldestNumber returns the lowest number; false if the queue is empty. The search is short because numbers are dense.
func (q *encodedQueue) oldestNumber() (uint64, bool) {
	if len(q.all) == 0 {
		return 0, false
	}
	for {
		if _, found := q.all[q.lowest]; found {
			return q.lowest, true
		}
		q.lowest++
	}
}

// removeRequest removes and returns a request, which must be in the queue.
func (q *encodedQueue) removeRequest(number uint64) encodedRequest {
	removed := q.all[number]
	delete(q.all, number)
	at := q.queues[removed.at]
	if at.first == number {
		at.first = removed.next
	} else {
		n := at.first
		for q.all[n].next != number {
			n = q.all[n].next
		}
		before := q.all[n]
		before.next = removed.next
		q.all[n] = before
		if at.last == number {
			at.last = n
		}
	}
	if q.queues[removed.at] = at; at.first == 0 {
		delete(q.queues, removed.at)
	}
	return removed
}

// decode decodes the request. It panics on data that this process did not encode.
func (e *encodedRequest) decode(number uint64) *Request {
	r, err := decodeRequest(number, e.data)
	if err != nil {
		panic("attribution: cannot decode an encoded request: " + err.Error())
	}
	r.Arrived = time.Unix(0, e.arrived)
	return r
}
