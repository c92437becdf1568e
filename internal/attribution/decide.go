package attribution

import (
	"cmp"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// verdict is what is known of who made a change.
type verdict struct {
	by     *Request // nil: nobody can be named, and reason says why
	likely bool     // it is a guess
	reason Reason
	final  bool // no later event can contradict
}

// resolveChange concludes a change if it is time to.
func (j *Matcher) resolveChange(p *pendingChange, now time.Time) {
	age := j.waitedSince(p.Observed, now)
	o := j.objects[p.UID]
	if mark := o.precedingMark(p); mark != nil && age <= j.limits.Window {
		return // who marked it is decided first: its claims may be those of the delete
	}
	f := j.resolveAuthor(o, p)
	if f.by == nil && f.reason == NoEvent && j.limits.Likely {
		f = j.resolveLikely(p)
	}
	if f.by != nil && (f.final || age > j.limits.Settle) || age > j.limits.Window {
		j.finishChange(p, f)
	}
}

// precedingMark returns the change that marked the object which p deletes, or ended its grace, as long as that waits.
func (o *objectQueue) precedingMark(p *pendingChange) *pendingChange {
	if p.Type != event.Deleted || p.Previous == "" {
		return nil
	}
	for _, m := range o.changes {
		if (m.Marks || m.endsGrace) && m.Version == p.Previous {
			return m
		}
	}
	return nil
}

// weighedClaims are the claims of one change, by what they are worth. Those that cannot be true are left out.
type weighedClaims struct {
	certain  []claim // nobody else can have been answered so
	own      []claim // answered with the change's own version: one of them made it, others can have found it there
	inferred []claim // made another change that can have caused this one
	late     bool    // there was one that came when the change was there already
}

// resolveAuthor returns the request that alone can have made a change, or why there is none.
func (j *Matcher) resolveAuthor(o *objectQueue, p *pendingChange) verdict {
	w := j.weighClaims(o, p)
	if len(w.certain) > 0 {
		if !sameActor(w.certain) { // two records that cannot both be true
			return verdict{reason: SeveralActors}
		}
		return verdict{by: earliestClaim(w.certain).Request, final: true}
	}
	for _, left := range [][]claim{append(w.own, j.claimsOfDelete(o, p)...), w.inferred} {
		if len(left) == 0 {
			continue
		}
		by := soleAuthor(left)
		if by == nil {
			return verdict{reason: SeveralActors}
		}
		if !by.likelyChangedNothing(&p.Change) {
			return verdict{by: by.Request}
		}
	}
	switch {
	case p.mark != nil && p.mark.Deletes:
		return verdict{by: p.mark.By}
	case w.late:
		return verdict{reason: TooLate}
	}
	return verdict{reason: NoEvent}
}

func (j *Matcher) weighClaims(o *objectQueue, p *pendingChange) (w weighedClaims) {
	for _, c := range j.claimsOf(o, p) {
		switch {
		case c.changedNothing(p):
		case c.isConclusive(&p.Change):
			w.certain = append(w.certain, c)
		case c.isTooLate(&p.Change, j.limits.Skew), c.kind == byVersion && j.answers.existedBefore(c.Request, p.Version):
			w.late = true
		case c.answersVersion():
			w.own = append(w.own, c)
		default:
			w.inferred = append(w.inferred, c)
		}
	}
	return w
}

// claimsOf returns the claims of a change: those of its object, and those of its name that can be of no other object.
func (j *Matcher) claimsOf(o *objectQueue, p *pendingChange) (all []claim) {
	for _, c := range o.claims {
		if c.matchesChange(p) {
			all = append(all, c)
		}
	}
	if named := j.objects[p.objectName()]; named != nil {
		for _, c := range named.claims {
			if c.matchesChange(p) && !c.mayNamePredecessor(p, j.limits.Skew) {
				all = append(all, c)
			}
		}
	}
	return all
}

// claimsOfDelete returns the claims of what deleted an object that p had marked a moment before: the API server writes twice
// for one delete of a pod, and answers with the second write.
func (j *Matcher) claimsOfDelete(o *objectQueue, p *pendingChange) []claim {
	if !p.Marks && !p.endsGrace {
		return nil
	}
	var found []claim
	for _, d := range o.changes {
		if d.Type != event.Deleted || d.Previous != p.Version {
			continue
		}
		for _, c := range o.claims {
			deletes := (c.Verb == "delete" || c.kind == byListed) && c.matchesChange(d)
			if deletes && c.Received <= audit.Time(p.Observed.Add(-j.limits.Skew).UnixNano()) {
				found = append(found, c)
			}
		}
	}
	return found
}

// soleAuthor returns the first request of the one identity that all claims are of; nil where there are several. Of those who were
// answered with a version, whoever came after another one had been answered found it there. Only the clocks of one origin
// tell that.
func soleAuthor(all []claim) *claim {
	if sameActor(all) {
		return earliestClaim(all)
	}
	for _, c := range all[1:] {
		if c.Origin == "" || c.Origin != all[0].Origin {
			return nil
		}
	}
	first := slices.MinFunc(all, func(a, b claim) int { return cmp.Compare(a.Done, b.Done) })
	left := slices.DeleteFunc(slices.Clone(all), func(c claim) bool { return c.Received > first.Done })
	if sameActor(left) {
		return earliestClaim(left)
	}
	return nil
}

// earliestClaim is the first claim, of those that may have changed something at every attempt if there are any.
func earliestClaim(all []claim) *claim {
	changed := slices.DeleteFunc(slices.Clone(all), func(c claim) bool { return c.Unchanged != "" })
	if len(changed) == 0 {
		changed = all
	}
	first := slices.MinFunc(changed, func(a, b claim) int { return cmp.Compare(a.Received, b.Received) })
	return &first
}

// sameActor says whether all claims are of one identity.
func sameActor(all []claim) bool {
	for _, c := range all[1:] {
		if c.Actor() != all[0].Actor() {
			return false
		}
	}
	return true
}
