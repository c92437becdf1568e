package attribution

import (
	"slices"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/attribution/stamp"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Stamps prove for which versions the admission policy was in force, see [stamp.Guard].
type Stamps interface {
	Proof() *stamp.Proof // what is known now; never waits
	RequestCheck()       // a change waits for a newer proof; never waits
}

// stampVerdict is what the stamp of a change proves.
type stampVerdict uint8

const (
	noStamps       stampVerdict = iota // stamps are not used
	notStamped                         // the write was not stamped
	stampAwaited                       // the proof does not reach the version yet
	stampDismissed                     // the policy may not have been in force
	stampProven                        // Change.Stamp has the author
)

// stampProof judges whether the policy of stamps was in force for a version, see [stamp.Proof].
type stampProof interface {
	Judge(resource event.Resource, version string) stamp.Verdict
}

func (m *Matcher) useStamps(proof stampProof) { m.proof = proof }

func (m *Matcher) judgeStamp(p *pendingChange) stampVerdict {
	switch {
	case m.proof == nil:
		return noStamps
	case p.Stamp == nil:
		return notStamped
	}
	switch m.proof.Judge(p.Resource, p.Version) {
	case stamp.InForce:
		return stampProven
	case stamp.NotInForce:
		return stampDismissed
	default:
		m.unproven = true
		return stampAwaited
	}
}

// mustWait reports whether a change waits, within the window, for a proof or for its audit event: a stamp alone is enough
// only once all events are here, because both have to agree.
func (s stampVerdict) mustWait(v verdict, settled bool, limits *Limits) bool {
	switch s {
	case stampAwaited:
		return limits.NoEvents || !settled
	case stampProven:
		return v.by == nil && v.reason != SeveralActors && !settled
	default:
		return false
	}
}

// combineEvidence returns the author of a change from the verdict of the audit log and from its stamp.
func (m *Matcher) combineEvidence(p *pendingChange, v verdict, s stampVerdict, settled bool) verdict {
	switch {
	case s == stampProven:
		return m.confirmStamp(p, v, settled)
	case !m.limits.NoEvents || s == noStamps:
		return v
	case s == notStamped:
		return verdict{reason: Unstamped, final: true}
	}
	return verdict{reason: Unproven, final: true}
}

// confirmStamp returns the author that a stamp proves, with the request from the audit log if it has one of this user. A
// request of another user that the log proves as the author contradicts the stamp; so do several, if none is of the user.
func (m *Matcher) confirmStamp(p *pendingChange, v verdict, settled bool) verdict {
	user := p.Stamp.User
	switch {
	case v.by != nil && v.by.effectiveUser() == user:
		return verdict{by: v.by, final: true, stamp: true}
	case v.by != nil:
		return verdict{reason: Disagreement, final: v.final || settled}
	case v.reason == SeveralActors:
		own := slices.DeleteFunc(m.resolver.claimsOf(p), func(c claim) bool { return c.effectiveUser() != user })
		if len(own) > 0 {
			return verdict{by: earliestClaim(own).Request, final: true, stamp: true}
		}
		return verdict{reason: Disagreement, final: settled}
	case v.possible != nil && v.possible.effectiveUser() == user:
		return verdict{by: v.possible, final: true, stamp: true}
	}
	return verdict{by: stampedRequest(&p.Change), final: true, stamp: true}
}

func stampedRequest(c *Change) *Request {
	r := &Request{Event: audit.Event{User: c.Stamp.User, Verb: "update", Received: audit.Time(c.Observed.UnixNano())}}
	if c.Type == event.Added {
		r.Verb = "create"
	}
	return r
}

// effectiveUser returns the user that admission sees: the impersonated one, if any.
func (r *Request) effectiveUser() string {
	if r.Impersonated != nil {
		return r.Impersonated.Name
	}
	return r.User
}
