package attribution

import (
	"cmp"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

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
	byName                      // it names the object and nothing more: never more than likely
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
	return c.kind == byEviction || c.kind == byName || c.kind == byUnseen
}

// claimsOfRequest returns all claims of a request. With likely, a request without any claims the object by name.
func claimsOfRequest(r *waitingRequest, likely bool) []claim {
	if !r.IsWrite() {
		return nil
	}
	var all []claim
	switch {
	case r.Truncated && r.Name != "":
		all = []claim{{waitingRequest: r, name: r.objectName(), kind: byUnseen}}
	case !r.Truncated && r.Outcome == audit.Stored:
		all = certainClaims(r)
	}
	if likely && r.Name != "" && r.User != "" && (len(all) == 0 || r.Truncated) {
		all = append(all, claim{waitingRequest: r, name: r.objectName(), kind: byName})
	}
	return all
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
	case byUnseen, byName: // a name alone proves nothing
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

// answersVersion reports whether the answer has the change's own version. Of such requests one made it, and others can only
// have found it.
func (c *claim) answersVersion() bool {
	return c.kind == byVersion || c.kind == byDelete || c.kind == byNote
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

// isTooLate reports whether the request was received after the change had been observed, so that it cannot have made it.
// skew is how far the API server's clock may be ahead.
func (c *claim) isTooLate(of *Change, skew time.Duration) bool {
	return c.Received != 0 && !c.isConclusive(of) && c.Received > audit.Time(of.Observed.Add(skew).UnixNano())
}

// cameAfter reports whether the request was received after the change had been made: by isTooLate, or because the same API
// server had answered with its version or a newer one before.
func (c *claim) cameAfter(of *Change, skew time.Duration, answers *versionTimes) bool {
	return c.isTooLate(of, skew) || answers.existedBefore(c.Request, of.Version)
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
