package attribution

import (
	"hash/maphash"
	"time"
)

// encodedQueue holds requests as they are kept as evidence, until a change asks for them. Most events of an audit log wait for
// nobody, and what waits is gone through by every garbage collection, for which changes wait, too: so a request is one
// piece of memory here that holds no pointers.
type encodedQueue struct {
	all    map[uint64]encodedRequest // by number
	queues map[waitAddress]addressQueue
	lowest uint64 // no number is below
}

// encodedRequest is one packed request, which has one claim.
type encodedRequest struct {
	data     []byte
	identity uint64
	at       waitAddress
	next     uint64 // number of the one that came next to the same address; 0 for none
	arrived  int64  // nanoseconds since 1970
}

// waitAddress is where a claim waits for its change. It is a hash: a request that is unpacked because another address has the
// same one waits on, and that is all.
type waitAddress uint64

// addressOf is that of claims at an object. version is the one that the change has, or had before; "" where any will do.
func addressOf(at, version string, before bool) waitAddress {
	return waitAddress(maphash.Comparable(seed, struct {
		at, version string
		before      bool
	}{at, version, before}))
}

func (c *claim) address() waitAddress {
	return addressOf(c.waitKey(), c.version, c.kind == byRelease || c.kind == byMark)
}

// addresses returns those of all claims that can concern a change.
func (c *Change) addresses() [4]waitAddress {
	return [4]waitAddress{
		addressOf(c.UID, "", false), addressOf(c.objectName(), "", false),
		addressOf(c.UID, c.Version, false), addressOf(c.UID, c.Previous, true),
	}
}

// addressQueue are the first and the last number of those that wait at an address.
type addressQueue struct{ first, last uint64 }

func newEncodedQueue() encodedQueue {
	return encodedQueue{all: map[uint64]encodedRequest{}, queues: map[waitAddress]addressQueue{}}
}

// size is the memory that a packed request takes with its places in the maps of a [Matcher], in bytes.
func (p *encodedRequest) size() int { return 280 + len(p.data) }

// addRequest adds a request.
func (p *encodedQueue) addRequest(number uint64, of encodedRequest) {
	if len(p.all) == 0 || number < p.lowest {
		p.lowest = number
	}
	p.all[number] = of
	q, there := p.queues[of.at]
	if !there {
		q.first = number
	} else {
		last := p.all[q.last]
		last.next = number
		p.all[q.last] = last
	}
	q.last = number
	p.queues[of.at] = q
}

// firstAt returns the number of the first that waits at an address; 0 where none does.
func (p *encodedQueue) firstAt(at waitAddress) uint64 { return p.queues[at].first }

// oldestNumber returns the lowest number; false where there is none. Numbers of requests follow each other closely.
func (p *encodedQueue) oldestNumber() (uint64, bool) {
	if len(p.all) == 0 {
		return 0, false
	}
	for {
		if _, there := p.all[p.lowest]; there {
			return p.lowest, true
		}
		p.lowest++
	}
}

func (p *encodedQueue) arrivalTime(number uint64) time.Time {
	return time.Unix(0, p.all[number].arrived)
}

// removeRequest removes a request.
func (p *encodedQueue) removeRequest(number uint64) encodedRequest {
	taken := p.all[number]
	delete(p.all, number)
	q := p.queues[taken.at]
	if q.first == number {
		q.first = taken.next
	} else {
		at := q.first
		for p.all[at].next != number {
			at = p.all[at].next
		}
		before := p.all[at]
		before.next = taken.next
		p.all[at] = before
		if q.last == number {
			q.last = at
		}
	}
	if p.queues[taken.at] = q; q.first == 0 {
		delete(p.queues, taken.at)
	}
	return taken
}

// decodeRequest unpacks a request.
func (p *encodedRequest) decodeRequest(number uint64) *Request {
	r, err := decodeRequest(number, p.data)
	if err != nil {
		panic("attribution: what was encoded cannot be decoded: " + err.Error())
	}
	r.Arrived = time.Unix(0, p.arrived)
	return r
}
