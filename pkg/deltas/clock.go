package deltas

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

const (
	// maxClockTimes bounds each list of a Clock. A list has at most one version a second.
	maxClockTimes = 4096
	// timeUnit is the resolution of times in metadata.
	timeUnit = time.Second
	// timeSlack bounds how far the clocks of API servers and writers differ, and how long after its time a write may be
	// committed.
	timeSlack = 2 * time.Second
)

// Clock knows when versions were written, from objects that have a time at a known version. It is what tells times of
// changes that are read late. It trusts only what clients cannot choose: the times of creation and deletion, which the API
// server writes, and the renewals of Leases in the namespaces of the control plane. Safe for concurrent use; the zero value
// is ready.
type Clock struct {
	mu      sync.Mutex
	written timeline // a version was written then or later
	renewed timeline // a version was written then
}

// timeline is a list of versions and times; both grow.
type timeline []versionTime

type versionTime struct {
	version string
	at      int64 // Unix seconds
}

// search returns the index of the first entry that is not older than the version.
func (t timeline) search(version string) int {
	if n := len(t); n == 0 || isNewer(version, t[n-1].version) { // as of most changes
		return n
	}
	i, _ := slices.BinarySearchFunc(t, version, func(a versionTime, version string) int {
		order, _ := resourceversion.Compare(a.version, version)
		return order
	})
	return i
}

// add adds an entry, unless an older version has no earlier time. Newer versions with no later time are superseded.
func (t *timeline) add(version string, at int64) {
	i := t.search(version)
	if i > 0 && (*t)[i-1].at >= at || i < len(*t) && (*t)[i].version == version && (*t)[i].at >= at {
		return
	}
	to := i
	for to < len(*t) && (*t)[to].at <= at {
		to++
	}
	*t = slices.Replace(*t, i, to, versionTime{strings.Clone(version), at})
	if len(*t) > maxClockTimes {
		*t = slices.Delete(*t, 0, maxClockTimes/2)
	}
}

// lastUpTo returns the time of the newest entry up to a version; 0 if there is none.
func (t timeline) lastUpTo(version string) int64 {
	i := t.search(version)
	if i < len(t) && t[i].version == version {
		i++
	}
	if i == 0 || !resourceversion.IsOrdered(version) {
		return 0
	}
	return t[i-1].at
}

// firstFrom returns the time of the oldest entry from a version on; 0 if there is none.
func (t timeline) firstFrom(version string) int64 {
	if i := t.search(version); i < len(t) && resourceversion.IsOrdered(version) {
		return t[i].at
	}
	return 0
}

// ShareWith makes a tracker learn times from, and for, other resources of the same API server, if their versions are from
// one sequence. position is that up to which everything was observed before; "" if unknown. Call it before anything is
// observed.
func (k *Clock) ShareWith(t *Tracker, position string) {
	if t.position = position; sharesVersions(t.scope.Resource) {
		t.clock = k
	}
}

// forget forgets everything: versions have begun again.
func (k *Clock) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.written, k.renewed = nil, nil
}

// learn learns when an object was written at the earliest.
func (k *Clock) learn(o *Object) {
	at := max(o.CreatedAt, o.DeletingAt)
	if at == 0 || isAhead(at, o.ObservedAt) || !resourceversion.IsOrdered(o.ResourceVersion) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.written.add(o.ResourceVersion, at)
}

// isAhead reports whether a time was read before it came: the clocks differ, so it says nothing.
func isAhead(at int64, observed time.Time) bool {
	return time.Unix(at, 0).Add(-timeSlack).After(observed)
}

// setTimes replaces the claims of changes by their times. position is the version up to which everything was observed
// before; objects that a list lacks were deleted after it.
func (k *Clock) setTimes(changes []*event.Change, position string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range changes {
		if isRenewal(c) && !c.ChangedAt.At.IsZero() && !isAhead(c.ChangedAt.At.Unix(), c.ObservedAt) && resourceversion.IsOrdered(c.ResourceVersion) {
			k.written.add(c.ResourceVersion, c.ChangedAt.At.Unix())
			k.renewed.add(c.ResourceVersion, c.ChangedAt.At.Unix())
		}
	}
	for _, c := range changes {
		if c.Type == event.Added || c.Type == event.Updated || c.Type == event.Deleted && !c.Left {
			c.ChangedAt = narrow(k.windowOf(c, position), c.ChangedAt)
		} else {
			c.ChangedAt = event.ChangeTime{}
		}
	}
}

// windowOf returns the time of a change as it follows from other objects.
func (k *Clock) windowOf(c *event.Change, position string) event.ChangeTime {
	w := event.ChangeTime{At: c.ObservedAt, Source: event.TimeFromWatch}
	from, to := k.written.lastUpTo(c.ResourceVersion), k.renewed.firstFrom(c.ResourceVersion)
	if c.FinalStateUnknown { // the version is older than the delete
		from, to = max(from, k.written.lastUpTo(position)), 0
	}
	if from != 0 {
		w.NotBefore = time.Unix(from, 0).UTC().Add(-timeSlack)
	}
	if w.NotBefore.After(w.At) { // the clock of the exporter was set back, or stays behind
		w.NotBefore = time.Time{}
	}
	if at := time.Unix(to, 0).UTC().Add(timeUnit + timeSlack); to != 0 && at.Before(w.At) && !at.Before(w.NotBefore) {
		w.At = at
	}
	return w
}

// narrow narrows a window by the times that the object itself has. Clients can forge those, so they count only within the
// window. A claim without an end says that the change may be later.
func narrow(w, claim event.ChangeTime) event.ChangeTime {
	from, to := claim.NotBefore.Add(-timeSlack), claim.At.Add(timeUnit+timeSlack)
	openEnd := claim.At.IsZero()
	if claim.Source == "" || from.After(w.At) || !openEnd && to.Before(w.NotBefore) {
		return w
	}
	w.Source = claim.Source
	if from.After(w.NotBefore) {
		w.NotBefore = from
	}
	if !openEnd && to.Before(w.At) {
		w.At = to
	}
	return w
}

// claimSince returns the claim that a change was made at a time or later, which setTimes judges.
func claimSince(seconds int64, from event.TimeSource) event.ChangeTime {
	if seconds == 0 {
		return event.ChangeTime{}
	}
	return event.ChangeTime{NotBefore: time.Unix(seconds, 0).UTC(), Source: from}
}

// claimOf returns the claim that a change was made at a time.
func claimOf(seconds int64, from event.TimeSource) event.ChangeTime {
	claim := claimSince(seconds, from)
	claim.At = claim.NotBefore
	return claim
}

// claimOfUpdate returns the time that an object has for an update. The start of a deletion renews no entry of managedFields.
func claimOfUpdate(c *event.Change, o *Object) event.ChangeTime {
	if c.Class == event.ClassDeleting {
		return claimOf(o.DeletingAt, event.TimeFromDeletion)
	}
	if c.Actor == nil {
		return event.ChangeTime{}
	}
	return claimOf(secondsOf(c.Actor.Time), event.TimeFromManagedFields)
}

// claimOfListed returns the times that a listed object has for what was written of it since it was known. One that was not
// known was created since.
func claimOfListed(was string, o *Object) event.ChangeTime {
	newest := max(o.CreatedAt, o.DeletingAt)
	for names := o.Names; names != ""; {
		var text string
		for range 4 { // see AppendNames: the time is the last one
			text, names, _ = strings.Cut(names, "\x00")
		}
		newest = max(newest, secondsOf(text))
	}
	claim := claimOf(newest, event.TimeFromManagedFields)
	switch {
	case was != "" && !hasTimedWrite(was, o.Summary):
		claim.At = time.Time{}
	case was == "" && !isUsableSummary(o.Summary):
		claim = claimSince(o.CreatedAt, event.TimeFromManagedFields)
	case was == "":
		claim.NotBefore = claimSince(o.CreatedAt, claim.Source).NotBefore
	}
	return claim
}

// secondsOf returns the Unix time of a text in RFC 3339; 0 if it is none.
func secondsOf(text string) int64 {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0
	}
	return max(at.Unix(), 0)
}

// isRenewal reports whether a change is the renewal of a Lease that only the control plane and nodes may write.
func isRenewal(c *event.Change) bool {
	return c.Resource.Resource == "leases" && c.Resource.Group == "coordination.k8s.io" && c.Type == event.Updated &&
		(c.Namespace == "kube-node-lease" || c.Namespace == "kube-system") && c.ChangedAt.Source == event.TimeFromManagedFields
}

// sharesVersions reports whether the versions of a resource are from the sequence that most resources of kube-apiserver
// share (KEP-5504). Events are often in an etcd of their own, and any other group may be served by an aggregated API.
func sharesVersions(r event.Resource) bool {
	if r.Resource == "events" || strings.HasSuffix(r.Group, "metrics.k8s.io") {
		return false
	}
	return !strings.Contains(r.Group, ".") || strings.HasSuffix(r.Group, ".k8s.io")
}
