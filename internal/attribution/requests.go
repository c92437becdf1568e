package attribution

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
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
	bound   []*waitingRequest  // bound to an object since the last TakeFindings
}

// newWaiting wraps a request with its claims. It does not add it.
func (p *requestPool) newWaiting(r *Request, identity uint64) *waitingRequest {
	w := &waitingRequest{Request: r, identity: identity}
	w.claims = claimsOfRequest(w)
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
		if !found || !expired(time.Unix(0, p.encoded.all[oldest].arrived)) {
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
		w.claims = claimsOfRequest(w)
		p.claims[c.UID] = append(p.claims[c.UID], w.claims...)
		p.bound = append(p.bound, w)
	}
}

// closeClaims drops the claims to an object that is gone, which could match several of its changes.
func (p *requestPool) closeClaims(uid string) {
	for _, c := range slices.Clone(p.claims[uid]) {
		if c.isReusable() && !c.dropped {
			p.dropRequest(c.waitingRequest)
		}
	}
}

// claimKind is the rule by which a request claims a change of an object. docs/audit-trail.md states the rules.
type claimKind uint8

const (
	byVersion  claimKind = iota // it was answered with the change's version
	byDelete                    // it was answered that it removed the object
	byRelease                   // it was answered with a deleting object without finalizers and grace: it caused the delete
	byMark                      // it is a deletecollection that listed the version which the mark replaced
	byListed                    // it is a deletecollection that listed the object without finalizers
	byNote                      // it is a create, and the admission policy noted the UID
	byBinding                   // it is a binding: the change that gives a pod its node
	byEviction                  // it is an eviction: the changes that set its condition and mark the pod
	byUnseen                    // its event is truncated: it may have changed the object that it names
)

// claim is the possibility that a request made a change of one object, by one rule.
type claim struct {
	*waitingRequest
	uid     string // "" if the request only has the object's name
	name    string // object name key, for claims without uid
	kind    claimKind
	version string // the change's own for byVersion, the previous one for byRelease and byMark, else ""
}

// waitKey is the key under which the claim waits: the UID, or the object name key.
func (c *claim) waitKey() string {
	if c.uid != "" {
		return c.uid
	}
	return c.name
}

// isReusable reports whether one request can have made several changes that match the claim.
func (c *claim) isReusable() bool {
	return c.kind == byEviction || c.kind == byUnseen
}

func claimsOfRequest(r *waitingRequest) []claim {
	switch {
	case !r.IsWrite():
		return nil
	case r.Truncated && r.Name != "":
		return []claim{{waitingRequest: r, name: r.objectName(), kind: byUnseen}}
	case !r.Truncated && r.Outcome == audit.Stored:
		return certainClaims(r)
	}
	return nil
}

func (r *Request) objectName() string { return objectNameKey(r.Group, r.Resource, r.Namespace, r.Name) }

func certainClaims(r *waitingRequest) []claim {
	o := r.Answer
	switch {
	case r.Resource == "pods" && r.Group == "" && r.Subresource == "binding":
		return []claim{{waitingRequest: r, uid: cmp.Or(r.RefUID, r.Bound), name: r.objectName(), kind: byBinding}}
	case r.Resource == "pods" && r.Group == "" && r.Subresource == "eviction":
		return []claim{{waitingRequest: r, uid: cmp.Or(r.RefUID, r.Bound), name: r.objectName(), kind: byEviction}}
	case r.Verb == "deletecollection":
		return collectionClaims(r)
	case r.Verb == "delete" && r.DeletedUID != "":
		return []claim{{waitingRequest: r, uid: r.DeletedUID, kind: byDelete}}
	case o.UID == "" && r.NotedUID != "" && r.Replaces == "" && r.Code == statusCreated && r.Subresource == "":
		return []claim{{waitingRequest: r, uid: r.NotedUID, kind: byNote}}
	case o.UID == "" || o.ResourceVersion == "":
		return nil
	case o.Deleting && !o.Held && !o.Grace && (r.Verb == "update" || r.Verb == "patch"):
		return []claim{{waitingRequest: r, uid: o.UID, kind: byRelease, version: o.ResourceVersion}}
	}
	return []claim{{waitingRequest: r, uid: o.UID, kind: byVersion, version: o.ResourceVersion}}
}

// collectionClaims returns the claims of a deletecollection. Its answer has the objects as they were listed before the
// deletes.
func collectionClaims(r *waitingRequest) []claim {
	var all []claim
	for _, o := range r.Items {
		c := claim{waitingRequest: r, uid: o.UID, kind: byListed}
		if o.Held {
			c.kind, c.version = byMark, o.ResourceVersion
		}
		all = append(all, c)
	}
	return all
}

const statusCreated = 201 // response code of a request that created the object

// created reports whether the request created the object in its answer.
func (r *Request) created() bool {
	return r.Outcome == audit.Stored && r.Code == statusCreated && r.Subresource == "" && r.Answer.UID != ""
}

// matchesChange reports whether the change is one that the claim is about.
func (c *claim) matchesChange(of *pendingChange) bool {
	if c.waitKey() != of.UID && c.waitKey() != of.objectName() || c.Group != of.Resource.Group || c.Request.Resource != of.Resource.Resource {
		return false
	}
	switch c.kind {
	case byBinding:
		return of.binds
	case byEviction:
		return of.evicts
	case byVersion:
		return c.version == of.Version
	case byDelete, byListed:
		return of.Type == event.Deleted
	case byRelease:
		return of.Type == event.Deleted && of.Previous == c.version
	case byMark:
		return of.Type == event.Updated && of.Marks && of.Previous == c.version
	case byNote:
		return of.Type == event.Added
	case byUnseen: // a name alone proves nothing
	}
	return false
}

// isConclusive reports whether the request must be the author of the change: the API server gives such an answer to no other
// request.
func (c *claim) isConclusive(of *Change) bool {
	switch c.kind {
	case byDelete, byNote:
		return true
	case byBinding: // a pod is bound once
		return c.RefUID != ""
	case byVersion:
		switch of.Type {
		case event.Added:
			return c.Code == statusCreated && c.Subresource == ""
		case event.Deleted:
			return c.Verb == "delete"
		default: // an update with a version precondition that was answered with another version
			return c.Verb == "update" && resourceversion.IsOrdered(c.ResourceVersion) && c.ResourceVersion != of.Version
		}
	default:
		return false
	}
}

// creationPrecision is the precision of creationTimestamp, which is cut off to the second.
const creationPrecision = time.Second

// leastTolerance is how far the clocks of two machines may differ at least where a request has only the name of an object.
// The tolerance is twice as much between two API servers, of which one may be ahead of ours and one behind.
const leastTolerance = time.Second

// isOfObject reports whether a request provably was about the object of a change. If it has only the object's name, the
// object must have had the name when the request was received: its creation was observed before, or its creationTimestamp,
// which an API server sets, is older, or the same API server had answered with that version or a newer one. All hold after
// a restart. No later object of that name must be affected either.
func (c *claim) isOfObject(of *pendingChange, skew time.Duration, answers *versionTimes) bool {
	if c.uid != "" {
		return true
	}
	tolerance := max(skew, leastTolerance)
	after := func(t time.Time, tolerance time.Duration) bool {
		return !t.IsZero() && c.Received > audit.Time(t.Add(tolerance).UnixNano())
	}
	if !after(of.nameSince, tolerance) && !after(of.created, 2*tolerance) && !answers.existedBefore(c.Request, of.creation) {
		return false
	}
	return of.later == nil || c.isBefore(of.later, skew, answers)
}

// isBefore reports whether a request provably had been answered before the object of a change was created: by its
// creationTimestamp, or because the API server that answered it received a request later that made an older version.
func (c *claim) isBefore(later *pendingChange, skew time.Duration, answers *versionTimes) bool {
	if c.Done == 0 {
		return false
	}
	created := later.created.Add(-creationPrecision - 2*max(skew, leastTolerance))
	return !later.created.IsZero() && c.Done < audit.Time(created.UnixNano()) || answers.madeAfter(c.Request, later.creation)
}

// changedNothing reports whether the request provably found the version that it was answered with.
func (c *claim) changedNothing(of *pendingChange) bool {
	deletes := c.Verb == "delete"
	switch {
	case c.kind == byVersion && of.Type == event.Updated && (deletes && of.keepsDeletion || !deletes && of.Marks):
		return true // a delete changes what the deletion waits for, and only a delete sets the mark
	case c.kind == byVersion && of.Type == event.Added && c.Code != statusCreated:
		return true // the object existed
	case of.Type == event.Updated && c.Verb == "update" && c.ResourceVersion == of.Version:
		return true // the update wrote what it had read
	case of.Type != event.Deleted && c.Replaces == of.Version:
		return true // the admission policy noted that it started from this version
	case of.Type != event.Deleted && c.Unchanged == of.Version:
		return true // the admission policy noted that this version already had the content
	case of.Type == event.Updated && c.Unchanged != "" && c.Unchanged == of.Previous && !deletes && c.Subresource != "scale":
		// The policy noted that the version before had the content. An API server that finds that reads the present version,
		// and answers if it is still the one before. So the next attempt was of this version. A Scale lacks most of the
		// object.
		return true
	}
	return false
}

// changedSomething reports whether it is proven that the request changed something, so that it made the version that it was
// answered with. Requests that change nothing are answered with a version, too. The others stay possible authors.
func (c *claim) changedSomething(of *pendingChange) bool {
	switch {
	case c.kind != byVersion || of.Type != event.Updated || c.version != of.Version:
		return true
	case c.Verb == "delete" && !of.Marks:
		return false // it may have found the version: the policy notes only that the object was being deleted before
	}
	return c.isAnnotated() && c.Unchanged == ""
}

// isAnnotated reports whether the admission policy annotated the event. It annotates each update and delete that it matches;
// a client cannot choose the annotations.
func (c *claim) isAnnotated() bool { return c.Replaces != "" }

// cameAfter reports whether the request was received after the change had been made, so that it cannot have made it: after
// that was observed, or because the same API server had answered with its version or a newer one before. skew is how far the
// API server's clock may be ahead.
func (c *claim) cameAfter(of *Change, skew time.Duration, answers *versionTimes) bool {
	isTooLate := c.Received != 0 && !c.isConclusive(of) && c.Received > audit.Time(of.Observed.Add(skew).UnixNano())
	return isTooLate || answers.existedBefore(c.Request, of.Version)
}

// mayContradict reports whether a request of which only the time is known may have made a change that another one is named
// for.
func (c *claim) mayContradict(p *pendingChange, by *Request, settle, skew time.Duration) bool {
	if c.kind != byUnseen || c.User != "" && c.Actor() == by.Actor() || !c.mayHaveMade(p) {
		return false
	}
	from, to := c.Received, c.Done
	if from == 0 && to != 0 {
		from = to - audit.Time(maxRequest)
	}
	observed := audit.Time(p.Observed.UnixNano())
	return to == 0 || from <= observed+audit.Time(skew) && observed <= to+audit.Time(settle+skew)
}

// maxRequest is the time within which API servers answer writes.
const maxRequest = time.Minute

// mayHaveMade reports whether a request of this verb, on the object that it names, can have made the change.
func (c *claim) mayHaveMade(p *pendingChange) bool {
	for _, uid := range []string{c.NotedUID, c.RefUID} {
		if uid != "" && uid != p.UID {
			return false
		}
	}
	switch p.Type {
	case event.Added:
		return c.Verb == "create" || c.Verb == "patch" || c.Verb == "update"
	case event.Deleted:
		return c.Verb != "create"
	default:
		return c.Verb == "update" || c.Verb == "patch" || p.Marks && c.Verb == "delete"
	}
}
