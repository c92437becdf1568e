package attribution

import (
	"cmp"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// finding is what is known of who made a change.
type finding struct {
	by     *Request // nil: nobody can be named, and reason says why
	likely bool     // it is a guess
	reason Reason
	firm   bool // no later event can contradict
}

// decide concludes a change if it is time to.
func (j *Join) decide(p *pending, now time.Time) {
	age := j.waited(p.Observed, now)
	o := j.objects[p.UID]
	if mark := o.markOf(p); mark != nil && age <= j.limits.Window {
		return // who marked it is decided first: its claims may be those of the delete
	}
	f := j.name(o, p)
	if f.by == nil && f.reason == NoEvent && j.limits.Likely {
		f = j.guess(p)
	}
	if f.by != nil && (f.firm || age > j.limits.Settle) || age > j.limits.Window {
		j.conclude(p, f)
	}
}

// markOf returns the change that marked the object which p deletes, or ended its grace, as long as that waits.
func (o *object) markOf(p *pending) *pending {
	if p.Type != event.Deleted || p.Previous == "" {
		return nil
	}
	for _, m := range o.changes {
		if (m.Marks || m.ends) && m.Version == p.Previous {
			return m
		}
	}
	return nil
}

// weighed are the claims of one change, by what they are worth. Those that cannot be true are left out.
type weighed struct {
	certain  []claim // nobody else can have been answered so
	own      []claim // answered with the change's own version: one of them made it, others can have found it there
	inferred []claim // made another change that can have caused this one
	late     bool    // there was one that came when the change was there already
}

// name returns the request that alone can have made a change, or why there is none.
func (j *Join) name(o *object, p *pending) finding {
	w := j.weigh(o, p)
	if len(w.certain) > 0 {
		if !one(w.certain) { // two records that cannot both be true
			return finding{reason: Several}
		}
		return finding{by: earliest(w.certain).Request, firm: true}
	}
	for _, left := range [][]claim{append(w.own, j.deletersOf(o, p)...), w.inferred} {
		if len(left) == 0 {
			continue
		}
		by := only(left)
		if by == nil {
			return finding{reason: Several}
		}
		if !by.hollow(&p.Change) {
			return finding{by: by.Request}
		}
	}
	switch {
	case p.mark != nil && p.mark.Deletes:
		return finding{by: p.mark.By}
	case w.late:
		return finding{reason: Late}
	}
	return finding{reason: NoEvent}
}

func (j *Join) weigh(o *object, p *pending) (w weighed) {
	for _, c := range j.claimsOf(o, p) {
		switch {
		case c.idle(p):
		case c.firm(&p.Change):
			w.certain = append(w.certain, c)
		case c.late(&p.Change, j.limits.Skew), c.kind == byVersion && j.answers.before(c.Request, p.Version):
			w.late = true
		case c.own():
			w.own = append(w.own, c)
		default:
			w.inferred = append(w.inferred, c)
		}
	}
	return w
}

// claimsOf returns the claims of a change: those of its object, and those of its name that can be of no other object.
func (j *Join) claimsOf(o *object, p *pending) (all []claim) {
	for _, c := range o.claims {
		if c.concerns(p) {
			all = append(all, c)
		}
	}
	if named := j.objects[p.name()]; named != nil {
		for _, c := range named.claims {
			if c.concerns(p) && !c.misses(p, j.limits.Skew) {
				all = append(all, c)
			}
		}
	}
	return all
}

// deletersOf returns the claims of what deleted an object that p had marked a moment before: the API server writes twice
// for one delete of a pod, and answers with the second write.
func (j *Join) deletersOf(o *object, p *pending) []claim {
	if !p.Marks && !p.ends {
		return nil
	}
	var found []claim
	for _, d := range o.changes {
		if d.Type != event.Deleted || d.Previous != p.Version {
			continue
		}
		for _, c := range o.claims {
			deletes := (c.Verb == "delete" || c.kind == byListed) && c.concerns(d)
			if deletes && c.Received <= audit.Time(p.Observed.Add(-j.limits.Skew).UnixNano()) {
				found = append(found, c)
			}
		}
	}
	return found
}

// only returns the first request of the one identity that all claims are of; nil where there are several. Of those who were
// answered with a version, whoever came after another one had been answered found it there. Only the clocks of one origin
// tell that.
func only(all []claim) *claim {
	if one(all) {
		return earliest(all)
	}
	for _, c := range all[1:] {
		if c.Origin == "" || c.Origin != all[0].Origin {
			return nil
		}
	}
	first := slices.MinFunc(all, func(a, b claim) int { return cmp.Compare(a.Done, b.Done) })
	left := slices.DeleteFunc(slices.Clone(all), func(c claim) bool { return c.Received > first.Done })
	if one(left) {
		return earliest(left)
	}
	return nil
}

// earliest is the first claim, of those that may have changed something at every attempt if there are any.
func earliest(all []claim) *claim {
	changed := slices.DeleteFunc(slices.Clone(all), func(c claim) bool { return c.Unchanged != "" })
	if len(changed) == 0 {
		changed = all
	}
	first := slices.MinFunc(changed, func(a, b claim) int { return cmp.Compare(a.Received, b.Received) })
	return &first
}

// one says whether all claims are of one identity.
func one(all []claim) bool {
	for _, c := range all[1:] {
		if c.Actor() != all[0].Actor() {
			return false
		}
	}
	return true
}
