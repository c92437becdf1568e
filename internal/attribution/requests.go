package attribution

import (
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
)

// waitingRequest is a request with the claims by which it waits for its changes.
type waitingRequest struct {
	*Request
	identity uint64
	claims   []claim
	open     int // claims that still wait
	dropped  bool
}

// identityOf hashes what distinguishes requests. The audit ID alone does not: a client may choose it.
func identityOf(r *Request) uint64 {
	return maphash.Comparable(seed, struct {
		id, actor, verb, resource, namespace, name string
		received                                   audit.Time
	}{r.ID, r.Actor(), r.Verb, r.Resource, r.Namespace, r.Name, r.Received})
}

// requestPool holds the requests that wait for their changes. A request with one claim waits in encoded form until a change
// has its address; all others wait decoded, and changes find their claims by key.
type requestPool struct {
	limits  *Limits
	answers *versionTimes
	encoded encodedQueue
	waiting []*waitingRequest  // the decoded ones, in the order of decoding; dropped ones until the next dropExpired
	claims  map[string][]claim // of waiting, by waitKey
	known   map[uint64]bool    // identities of all requests
	bytes   int                // estimated memory of all requests
	evicted uint64             // dropped because of Limits.Bytes
	dropped []uint64           // numbers of dropped requests
	bound   []*waitingRequest  // bound to an object since the last takeBound
}

func newRequestPool(limits *Limits, answers *versionTimes) *requestPool {
	return &requestPool{limits: limits, answers: answers, encoded: newEncodedQueue(), claims: map[string][]claim{}, known: map[uint64]bool{}}
}

// newWaiting wraps a request with its claims. It does not add it.
func (p *requestPool) newWaiting(r *Request, identity uint64) *waitingRequest {
	w := &waitingRequest{Request: r, identity: identity}
	w.claims = claimsOfRequest(w, p.limits.Likely)
	w.open = len(w.claims)
	return w
}

// addRequest adds a numbered request that has claims, and evicts the oldest ones if all exceed the bound.
func (p *requestPool) addRequest(w *waitingRequest) {
	p.known[w.identity] = true
	if len(w.claims) == 1 && w.encodeEvidence() == nil {
		e := encodedRequest{data: w.encoded, identity: w.identity, at: w.claims[0].address(), arrived: w.Arrived.UnixNano()}
		p.encoded.addRequest(w.Number, e)
		p.bytes += e.size()
	} else {
		p.addWaiting(w)
	}
	p.evictOldest()
}

// addWaiting makes the claims of a request visible to changes.
func (p *requestPool) addWaiting(w *waitingRequest) {
	w.encoded = nil
	p.waiting = append(p.waiting, w)
	p.bytes += w.size()
	for _, c := range w.claims {
		key := c.waitKey()
		p.claims[key] = append(p.claims[key], c)
	}
}

// decodeFor decodes the requests that may have made a change.
func (p *requestPool) decodeFor(c *pendingChange) {
	for _, at := range c.addresses {
		for number := p.encoded.firstAt(at); number != 0; number = p.encoded.firstAt(at) {
			e := p.removeEncoded(number)
			p.addWaiting(p.newWaiting(e.decode(number), e.identity))
		}
	}
}

func (p *requestPool) removeEncoded(number uint64) encodedRequest {
	e := p.encoded.removeRequest(number)
	p.bytes -= e.size()
	return e
}

// evictOldest drops the oldest requests until the others fit into their half of Limits.Bytes.
func (p *requestPool) evictOldest() {
	for p.bytes > p.limits.Bytes/2 {
		if number, found := p.encoded.oldestNumber(); found && (len(p.waiting) == 0 || number < p.waiting[0].Number) {
			p.evicted++
			p.dropEncoded(number)
			continue
		}
		if oldest := p.waiting[0]; !oldest.dropped {
			p.evicted++
			p.dropRequest(oldest)
		}
		p.waiting = p.waiting[1:]
	}
}

func (p *requestPool) dropEncoded(number uint64) {
	delete(p.known, p.removeEncoded(number).identity)
	p.dropped = append(p.dropped, number)
}

// dropRequest drops a decoded request and all its claims. It stays in waiting until the next dropExpired.
func (p *requestPool) dropRequest(w *waitingRequest) {
	w.dropped = true
	p.bytes -= w.size()
	delete(p.known, w.identity)
	p.dropped = append(p.dropped, w.Number)
	for _, c := range w.claims {
		key := c.waitKey()
		p.setClaims(key, slices.DeleteFunc(p.claims[key], func(c claim) bool { return c.waitingRequest == w }))
	}
}

func (p *requestPool) setClaims(key string, claims []claim) {
	if len(claims) == 0 {
		delete(p.claims, key)
		return
	}
	p.claims[key] = claims
}

// dropExpired drops the requests that arrived too long ago, except those that may have made a change that still waits:
// without them that change would get another author.
func (p *requestPool) dropExpired(expired func(arrived time.Time) bool, isClaimed func(claim) bool) {
	for {
		oldest, found := p.encoded.oldestNumber()
		if !found || !expired(p.encoded.arrivalTime(oldest)) {
			break
		}
		p.dropEncoded(oldest)
	}
	for _, w := range p.waiting {
		if !w.dropped && expired(w.Arrived) && !slices.ContainsFunc(w.claims, isClaimed) {
			p.dropRequest(w)
		}
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(w *waitingRequest) bool { return w.dropped })
	p.evictOldest()
}

// releaseClaims removes the claims to an object that match a resolved change of it, and drops the requests that have no
// other claim.
func (p *requestPool) releaseClaims(c *pendingChange) {
	claims, found := p.claims[c.UID]
	if !found {
		return
	}
	var finished []*waitingRequest
	left := slices.DeleteFunc(claims, func(claim claim) bool {
		if claim.isReusable() || !claim.matchesChange(c) {
			return false
		}
		if claim.open--; claim.open == 0 {
			finished = append(finished, claim.waitingRequest)
		}
		return true
	})
	p.setClaims(c.UID, left)
	for _, w := range finished {
		p.dropRequest(w)
	}
}

// bindClaims binds the requests that have only the name of the object, and that provably were about the object of a resolved
// change, to this object. The others may be about a later one of the name.
func (p *requestPool) bindClaims(c *pendingChange) {
	name := c.objectName()
	var bound []*waitingRequest
	left := slices.DeleteFunc(p.claims[name], func(claim claim) bool {
		skew := p.limits.Skew
		binds := claim.matchesChange(c) && !claim.cameAfter(&c.Change, skew, p.answers) && claim.isOfObject(c, skew, p.answers)
		if binds {
			bound = append(bound, claim.waitingRequest)
		}
		return binds
	})
	p.setClaims(name, left)
	for _, w := range bound {
		w.Bound, w.encoded = strings.Clone(c.UID), nil
		w.claims = claimsOfRequest(w, p.limits.Likely)
		p.claims[c.UID] = append(p.claims[c.UID], w.claims...)
		p.bound = append(p.bound, w)
	}
}

// takeBound returns the requests that were bound to an object since the last call, and still wait.
func (p *requestPool) takeBound() (all []*Request) {
	for _, w := range p.bound {
		if !w.dropped {
			all = append(all, w.Request)
		}
	}
	p.bound = nil
	return all
}

// closeClaims drops the claims to an object that is gone, which could match several of its changes.
func (p *requestPool) closeClaims(uid string) {
	for _, c := range slices.Clone(p.claims[uid]) {
		if c.isReusable() && !c.dropped {
			p.dropRequest(c.waitingRequest)
		}
	}
}

// takeDropped returns the numbers of the requests that were dropped since the last call.
func (p *requestPool) takeDropped() []uint64 {
	dropped := p.dropped
	p.dropped = nil
	return dropped
}
