package attribution

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// verdict is the author of a change as far as it is known now.
type verdict struct {
	by     *Request // nil: see reason
	reason Reason
	final  bool // no later event can contradict it
	stamp  bool // a stamp proves by
	// possible is the first request of the only identity that can be the author if nothing proves that it changed something.
	possible *Request
}

// resolver finds the author of a change among the waiting claims. It modifies nothing.
type resolver struct {
	limits   *Limits
	changes  *changeQueue
	requests *requestPool
	answers  *versionTimes
}

// weighedClaims are the claims of one change by their weight. Claims that cannot be true are left out.
type weighedClaims struct {
	conclusive []claim // the API server gives such an answer to the author only
	own        []claim // answered with the change's own version: one is of the author, the others may have found that version
	inferred   []claim // of a request with another change that may have caused this one
	late       bool    // at least one was left out because its request came after the change
}

// resolveAuthor returns the only request that can have made a change, or the reason why there is none.
func (r *resolver) resolveAuthor(p *pendingChange) verdict {
	w := r.weighClaims(p)
	if len(w.conclusive) > 0 {
		if !sameActor(w.conclusive) { // contradicting audit events, such as forged ones
			return verdict{reason: SeveralActors}
		}
		return verdict{by: earliestClaim(w.conclusive).Request, final: true}
	}
	var unannotated *Request
	for _, claims := range [][]claim{append(w.own, r.claimsOfDelete(p)...), w.inferred} {
		if len(claims) == 0 {
			continue
		}
		left := claimsOfSoleAuthor(claims)
		if left == nil {
			return verdict{reason: SeveralActors}
		}
		proven := slices.DeleteFunc(slices.Clone(left), func(c claim) bool { // about that object, too
			return !c.changedSomething(p) || !c.isOfObject(p, r.limits.Skew, r.answers)
		})
		if len(proven) > 0 {
			return r.withoutContradiction(p, earliestClaim(proven).Request)
		}
		bare := slices.DeleteFunc(left, func(c claim) bool { return c.isAnnotated() || c.changedSomething(p) })
		if len(bare) > 0 {
			unannotated = earliestClaim(bare).Request
		}
	}
	switch {
	case p.mark != nil && p.mark.Deletes:
		return r.withoutContradiction(p, p.mark.By)
	case unannotated != nil:
		return verdict{reason: Unannotated, possible: unannotated}
	case w.late:
		return verdict{reason: TooLate}
	}
	return verdict{reason: NoEvent}
}

// withoutContradiction returns the author, unless the event of a request that may have made the change is truncated.
func (r *resolver) withoutContradiction(p *pendingChange, by *Request) verdict {
	for _, c := range r.requests.claims[p.objectName()] {
		if c.mayContradict(p, by, r.limits.Settle, r.limits.Skew) {
			return verdict{reason: SeveralActors}
		}
	}
	return verdict{by: by}
}

func (r *resolver) weighClaims(p *pendingChange) (w weighedClaims) {
	for _, c := range r.claimsOf(p) {
		switch {
		case c.changedNothing(p):
		case c.isConclusive(&p.Change):
			w.conclusive = append(w.conclusive, c)
		case c.cameAfter(&p.Change, r.limits.Skew, r.answers):
			w.late = true
		case c.uid == "" && c.isBefore(p, r.limits.Skew, r.answers): // of an earlier object of the name
		case c.kind == byVersion || c.kind == byDelete || c.kind == byNote:
			w.own = append(w.own, c)
		default:
			w.inferred = append(w.inferred, c)
		}
	}
	return w
}

// claimsOf returns the claims of a change, by the UID of its object and by the name. Those by name may be of another object.
func (r *resolver) claimsOf(p *pendingChange) (all []claim) {
	for _, key := range []string{p.UID, p.objectName()} {
		for _, c := range r.requests.claims[key] {
			if c.matchesChange(p) {
				all = append(all, c)
			}
		}
	}
	return all
}

// claimsOfDelete returns the claims of the delete that directly follows p, if p marked a pod that nothing delays, or ended
// its grace period. For one delete of such a pod the API server writes twice and answers with the second version, so the
// author of the delete is the author of p.
func (r *resolver) claimsOfDelete(p *pendingChange) []claim {
	if marks := p.Marks && p.deletable; !marks && !p.endsGrace {
		return nil
	}
	var found []claim
	for _, d := range r.changes.byUID[p.UID] {
		if d.Type != event.Deleted || d.Previous != p.Version {
			continue
		}
		for _, c := range r.requests.claims[p.UID] {
			deletes := (c.Verb == "delete" || c.kind == byListed) && c.matchesChange(d)
			if deletes && c.Received <= audit.Time(p.Observed.Add(-r.limits.Skew).UnixNano()) {
				found = append(found, c)
			}
		}
	}
	return found
}

// claimsOfSoleAuthor returns the claims of the only identity that can be the author; nil if there are several. Among
// requests that were answered with the same version, one that was received after another had been answered found that
// version. Only the clocks of one origin can prove that.
func claimsOfSoleAuthor(all []claim) []claim {
	if sameActor(all) {
		return all
	}
	if slices.ContainsFunc(all[1:], func(c claim) bool { return c.Origin == "" || c.Origin != all[0].Origin }) {
		return nil
	}
	first := slices.MinFunc(all, func(a, b claim) int { return cmp.Compare(a.Done, b.Done) })
	left := slices.DeleteFunc(slices.Clone(all), func(c claim) bool { return c.Received > first.Done })
	if sameActor(left) {
		return left
	}
	return nil
}

func earliestClaim(all []claim) *claim {
	first := slices.MinFunc(all, func(a, b claim) int { return cmp.Compare(a.Received, b.Received) })
	return &first
}

func sameActor(all []claim) bool {
	return !slices.ContainsFunc(all[1:], func(c claim) bool { return c.Actor() != all[0].Actor() })
}

// Request is an audited request that may have made changes.
type Request struct {
	audit.Event
	// Origin identifies the API server; "" if not known. Only times of the same origin are compared with each other.
	Origin string `json:"origin,omitempty"`
	// Number is its evidence number, unique among the requests, marks and losses of a [Matcher].
	Number uint64 `json:"-"`
	// Arrived is when this process got the event. The wait of an event that an earlier process stored restarts.
	Arrived time.Time `json:"-"`
	// Lag is by how much the event arrived too late to be waited for; 0 if it did not.
	Lag time.Duration `json:"lag,omitempty"`
	// Bound is the UID of the object that a request which has only a name was about, once it matched a change of that object.
	// From then on it claims nothing of another one, also after a restart.
	Bound string `json:"bound,omitempty"`

	encoded []byte // as stored in the journal; nil: not encoded yet
}

func (r *Request) encodeEvidence() (err error) {
	if r.encoded == nil {
		r.encoded, err = json.Marshal(r)
	}
	return err
}

// size estimates the memory of a decoded request, in bytes.
func (r *Request) size() int {
	n := 1050 + 24*len(r.Groups) + 16*len(r.SourceIPs) + 160*len(r.Items)
	for _, s := range r.Groups {
		n += len(s)
	}
	return n + len(r.UserAgent) + len(r.User) + len(r.Name) + len(r.Namespace)
}

// identity returns the identity that made a request, in the form of an attributed record.
func (r *Request) identity() event.Identity {
	i := event.Identity{
		User: r.User, UID: r.UserUID, Groups: r.Groups, Verb: r.Verb, Subresource: r.Subresource, Received: r.Received.Time(),
		UserAgent: r.UserAgent, SourceIPs: r.SourceIPs, AuditID: r.ID,
	}
	if as := r.Impersonated; as != nil {
		i.User, i.UID, i.Groups, i.Impersonator = as.Name, as.UID, as.Groups, r.User
		i.ImpersonationConstraint = r.Constraint
	}
	return i
}

// decodeEvidence decodes stored evidence: a *[DeleteMark], a *[Loss] or a *[Request].
func decodeEvidence(e event.Evidence) (any, error) {
	m := &DeleteMark{Number: e.Number}
	if err := json.Unmarshal(e.Value, m); err != nil || m.UID != "" && m.By != nil {
		return m, err
	}
	l := &Loss{Numbers: []uint64{e.Number}}
	if err := json.Unmarshal(e.Value, l); err != nil || l.Reason != "" {
		return l, err
	}
	return decodeRequest(e.Number, e.Value)
}

// decodeRequest decodes a request that encodeEvidence has encoded.
func decodeRequest(number uint64, encoded []byte) (*Request, error) {
	r := &Request{Number: number}
	err := json.Unmarshal(encoded, r)
	r.Stage = audit.Complete // the only stage that is stored
	return r, err
}

func encodeKept(f *Findings) (all []event.Evidence, err error) {
	for _, r := range f.Bound {
		if err := r.encodeEvidence(); err != nil {
			return nil, err
		}
		all = append(all, event.Evidence{Number: r.Number, Value: r.encoded})
		r.encoded = nil // it is decoded, and is not counted twice
	}
	for _, m := range f.Marks {
		value, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		all = append(all, event.Evidence{Number: m.Number, Value: value})
	}
	return all, nil
}

// resolvedOffsets are the changes after the cursor that are resolved, although older ones wait: all up to highest, except
// those that wait. They are stored with the cursor. Their evidence is used up, so resolving them again after a restart would
// find another author, or none.
type resolvedOffsets struct {
	highest uint64
	waiting []uint64 // in order
}

// contains reports whether the change at an offset is resolved.
func (r *resolvedOffsets) contains(offset uint64) bool {
	if offset > r.highest {
		return false
	}
	_, waits := slices.BinarySearch(r.waiting, offset)
	return !waits
}

// after returns what is resolved once all changes up to read are, apart from some that wait. Later ones are not read yet.
func (r *resolvedOffsets) after(read uint64, waiting []uint64) resolvedOffsets {
	i, found := slices.BinarySearch(r.waiting, read)
	if found {
		i++
	}
	return resolvedOffsets{highest: max(read, r.highest), waiting: append(waiting, r.waiting[i:]...)}
}

// encodeResolved returns the stored form: highest and the waiting offsets, each as the difference to the one before.
func encodeResolved(r resolvedOffsets) []byte {
	b := binary.AppendUvarint(nil, r.highest)
	before := uint64(0)
	for _, offset := range r.waiting {
		b = binary.AppendUvarint(b, offset-before)
		before = offset
	}
	return b
}

// decodeResolved decodes the stored form. None is stored by a version before this one.
func decodeResolved(b []byte) (r resolvedOffsets, err error) {
	before, first := uint64(0), true
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			return r, errors.New("the resolved changes that are stored with the cursor are damaged")
		}
		if b = b[size:]; first {
			r.highest, first = n, false
			continue
		}
		before += n
		r.waiting = append(r.waiting, before)
	}
	return r, nil
}
