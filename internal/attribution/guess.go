package attribution

import (
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// likelyWindow is how long before a change was seen a request may have ended that is guessed to have made it.
const likelyWindow = time.Second

// resolveLikely names the one identity that was at an object when it changed, as far as the audit log tells: not more than likely.
func (j *Matcher) resolveLikely(p *pendingChange) verdict {
	named := j.objects[p.objectName()]
	if named == nil {
		return verdict{reason: NoEvent}
	}
	var there []claim
	from, to := audit.Time(p.Observed.Add(-likelyWindow).UnixNano()), audit.Time(p.Observed.Add(j.limits.Skew).UnixNano())
	for _, c := range named.claims {
		if c.kind == byName && c.Received <= to && c.Done >= from && c.mayHaveMade(p) {
			there = append(there, c)
		}
	}
	switch {
	case len(there) == 0:
		return verdict{reason: NoEvent}
	case !sameActor(there):
		return verdict{reason: SeveralActors}
	}
	return verdict{by: earliestClaim(there).Request, likely: true}
}

// mayHaveMade says whether a request of that kind can have made the change, of the object that it names.
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
	}
	return c.Verb == "update" || c.Verb == "patch" || p.Marks && c.Verb == "delete"
}
