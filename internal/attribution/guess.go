package attribution

import (
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// nearby is how long before a change was seen a request may have ended that is guessed to have made it.
const nearby = time.Second

// guess names the one identity that was at an object when it changed, as far as the audit log tells: not more than likely.
func (j *Join) guess(p *pending) finding {
	named := j.objects[p.name()]
	if named == nil {
		return finding{reason: NoEvent}
	}
	var there []claim
	from, to := audit.Time(p.Observed.Add(-nearby).UnixNano()), audit.Time(p.Observed.Add(j.limits.Skew).UnixNano())
	for _, c := range named.claims {
		if c.kind == byName && c.Received <= to && c.Done >= from && c.fits(p) {
			there = append(there, c)
		}
	}
	switch {
	case len(there) == 0:
		return finding{reason: NoEvent}
	case !one(there):
		return finding{reason: Several}
	}
	return finding{by: earliest(there).Request, likely: true}
}

// fits says whether a request of that kind can have made the change, of the object that it names.
func (c *claim) fits(p *pending) bool {
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
