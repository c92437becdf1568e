package attribution

import (
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// claimKind says by which rule a request claims a change of an object.
type claimKind uint8

const (
	byVersion  claimKind = iota // it was answered with the change's version
	byDelete                    // it says that it removed the object
	byRelease                   // it was answered with an object that nothing holds any more: its delete
	byMark                      // the mark that replaced the version which a deletecollection had listed
	byListed                    // an object without finalizers that a deletecollection had listed
	byNote                      // a create, by the uid that the admission policy noted
	byBinding                   // the change that gave a pod its node
	byEviction                  // those that gave a pod the condition of an eviction and marked it
	byName                      // anything that was at an object of that name: never more than likely
)

// claim says that a request may have made the change of one object that the rule speaks of.
type claim struct {
	*waitingRequest
	uid     string // "" where the request names no more than the object's name
	name    string // where there is no uid
	kind    claimKind
	version string // of byVersion the change's own, of byRelease and byMark the one before; "" else
}

// waitKey is where a claim waits for its object.
func (c *claim) waitKey() string {
	if c.uid != "" {
		return c.uid
	}
	return c.name
}

// isReusable says whether a claim that was concluded from may be one of further changes.
func (c *claim) isReusable() bool { return c.kind == byEviction || c.kind == byName }

// claimsOfRequest returns everything that a request claims. Where guesses are wanted, what claims nothing claims its name.
func claimsOfRequest(r *waitingRequest, guesses bool) []claim {
	if !r.IsWrite() {
		return nil
	}
	all := certainClaims(r)
	if guesses && len(all) == 0 && r.Name != "" {
		return []claim{{waitingRequest: r, name: r.objectName(), kind: byName}}
	}
	return all
}

func (r *Request) objectName() string { return objectNameKey(r.Group, r.Resource, r.Namespace, r.Name) }

func certainClaims(r *waitingRequest) []claim {
	o := r.Answer
	switch {
	case r.Resource == "pods" && r.Group == "" && r.Subresource == "binding":
		return []claim{{waitingRequest: r, uid: r.RefUID, name: r.objectName(), kind: byBinding}}
	case r.Resource == "pods" && r.Group == "" && r.Subresource == "eviction":
		return []claim{{waitingRequest: r, uid: r.RefUID, name: r.objectName(), kind: byEviction}}
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

// collectionClaims returns the claims of a deletecollection, which is answered with the objects as they were listed.
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

// statusCreated is the code of an answer to what made an object.
const statusCreated = 201

// anyVersion is the version of an update that insists on none, like an empty one.
const anyVersion = "0"

// matchesChange says whether a claim is one of this change.
func (c *claim) matchesChange(of *pendingChange) bool {
	if c.waitKey() != of.UID && c.waitKey() != of.objectName() {
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
	}
	return false
}

// isConclusive says whether the request alone can have made the change, whoever else was at the object: the API server gives such an
// answer to no other request.
func (c *claim) isConclusive(of *Change) bool {
	switch c.kind {
	case byDelete, byNote:
		return true
	case byBinding: // a pod is bound once
		return c.uid != ""
	case byVersion:
		switch of.Type {
		case event.Added:
			return c.Code == statusCreated && c.Subresource == ""
		case event.Deleted:
			return c.Verb == "delete"
		default: // an update that insists on a version and was answered with another
			return c.Verb == "update" && c.ResourceVersion != "" && c.ResourceVersion != anyVersion && c.ResourceVersion != of.Version
		}
	}
	return false
}

// answersVersion says whether the answer has the change's own version, so that others can only repeat it.
func (c *claim) answersVersion() bool {
	return c.kind == byVersion || c.kind == byDelete || c.kind == byNote
}

// mayNamePredecessor says that a request which names an object by its name only may have been about another one of that name: it came
// before this one was seen to have taken the name over.
func (c *claim) mayNamePredecessor(of *pendingChange, skew time.Duration) bool {
	return c.uid == "" && !of.nameSince.IsZero() && c.Received <= audit.Time(of.nameSince.Add(skew).UnixNano())
}

// changedNothing says that the request has changed nothing, and was answered with a version that was there.
func (c *claim) changedNothing(of *pendingChange) bool {
	deletes := c.Verb == "delete"
	switch {
	case c.kind == byVersion && of.Type == event.Updated && (deletes && of.keepsDeletion || !deletes && of.Marks):
		return true // only a delete changes what an object waits for, and nothing else
	case c.kind == byVersion && of.Type == event.Added && c.Code != statusCreated:
		return true // it found the object there
	case of.Type == event.Updated && c.Verb == "update" && c.ResourceVersion == of.Version:
		return true // it wrote what it had read
	case of.Type != event.Deleted && c.Replaces == of.Version:
		return true // it ended with the version that it began with
	case of.Type != event.Deleted && c.Unchanged == of.Version:
		return true // it found there what it was about to write
	}
	return false
}

// likelyChangedNothing says that the request has most likely changed nothing, and is not to be named: an attempt of it had nothing to
// change in an older version than the one that it was answered with. A later attempt may have had.
func (c *claim) likelyChangedNothing(of *Change) bool {
	return of.Type != event.Deleted && c.Unchanged != ""
}

// isTooLate says that a request came when the change had been seen already: whatever it was answered with, it did not make the
// change. skew is how far the API server's clock may be ahead.
func (c *claim) isTooLate(of *Change, skew time.Duration) bool {
	return c.Received != 0 && !c.isConclusive(of) && c.Received > audit.Time(of.Observed.Add(skew).UnixNano())
}
