package attribution

import (
	"container/list"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

const (
	maxMarks       = 4096  // objects that wait for their finalizers or their grace period
	maxKnownStates = 32768 // pods and objects that are being deleted, about 300 bytes each
)

// DeleteMark is the request that asked for the deletion of an object that still exists.
type DeleteMark struct {
	Number  uint64   `json:"-"` // its evidence number
	UID     string   `json:"asked"`
	By      *Request `json:"by"`
	Deletes bool     `json:"deletes,omitempty"` // the request also makes the delete, because nothing delays it
}

// objectHistory holds what earlier changes and requests left behind for later changes. It is bounded: the oldest entries are
// evicted, and changes that need them stay unresolved.
type objectHistory struct {
	marks  recentMap[*DeleteMark]    // by UID
	states recentMap[versionedState] // by UID
	names  recentMap[nameHolder]     // by object name key; pods only
}

type versionedState struct {
	objectState
	version string
}

type nameHolder struct {
	uid      string
	since    time.Time // when its creation was observed; zero: it was not
	creation string    // the version of its creation; "" if that was not observed
}

// recordChange records state and name of a change, eligible for attribution or not. It returns the state that the change
// found; known is false if the previous version was not recorded.
func (h *objectHistory) recordChange(c *Change) (before objectState, known bool) {
	last, found := h.states.remove(c.UID)
	pod := isPod(c.Resource)
	if c.hasState && (pod || c.deleting) && c.Type != event.Deleted {
		h.states.putNewest(c.UID, versionedState{c.objectState, c.Version})
	}
	if pod && c.Type != event.Deleted {
		h.recordNameHolder(c)
	}
	return last.objectState, found && c.Previous != "" && last.version == c.Previous
}

func (h *objectHistory) recordNameHolder(c *Change) {
	name := c.objectName()
	holder, _ := h.names.get(name)
	if holder.uid == c.UID {
		return
	}
	next := nameHolder{uid: c.UID}
	if c.Type == event.Added {
		next.since, next.creation = c.Observed, c.Version
	}
	h.names.putNewest(name, next)
}

// nameHolder returns what is known of the object of a change as the holder of its name.
func (h *objectHistory) nameHolder(c *Change) nameHolder {
	if holder, found := h.names.get(c.objectName()); found && holder.uid == c.UID {
		return holder
	}
	return nameHolder{}
}

func (h *objectHistory) removeMark(uid string) *DeleteMark {
	m, _ := h.marks.remove(uid)
	return m
}

// recentMap is a map of at most max entries that evicts the one that was put first.
type recentMap[V any] struct {
	max   int
	all   map[string]*list.Element // the values are recentEntry
	order *list.List               // oldest first
}

type recentEntry[V any] struct {
	key   string
	value V
}

func newRecentMap[V any](max int) recentMap[V] {
	return recentMap[V]{max: max, all: map[string]*list.Element{}, order: list.New()}
}

// putNewest adds or replaces an entry. If the map was full, it returns the evicted value and true.
func (m *recentMap[V]) putNewest(key string, v V) (evicted V, full bool) {
	m.remove(key)
	key = strings.Clone(key)
	m.all[key] = m.order.PushBack(recentEntry[V]{key, v})
	if m.order.Len() <= m.max {
		return evicted, false
	}
	oldest := m.order.Remove(m.order.Front()).(recentEntry[V])
	delete(m.all, oldest.key)
	return oldest.value, true
}

func (m *recentMap[V]) remove(key string) (v V, found bool) {
	e, found := m.all[key]
	if !found {
		return v, false
	}
	delete(m.all, key)
	return m.order.Remove(e).(recentEntry[V]).value, true
}

// get returns a value and does not renew its entry.
func (m *recentMap[V]) get(key string) (v V, found bool) {
	e, found := m.all[key]
	if !found {
		return v, false
	}
	return e.Value.(recentEntry[V]).value, true
}

const (
	maxVersionTimes = 2048 // by API server and resource, 40 bytes each, and as many that are not reached yet
	maxClocks       = 256  // pairs of API server and resource; each connection counts as an API server
)

// versionTimes records when a version certainly existed: when a request had been answered with it, or with a newer version
// of the same resource, because versions of a resource are in the order of writes. Times of different API servers are not
// compared. An answer with a version that the stream has not reached waits until it has: nothing else proves that there is
// such a version, and a huge one would make every later request too late.
type versionTimes struct {
	byResource recentMap[*answerTimes]
	reached    string // newest version in the stream, of any resource
}

func newVersionTimes() versionTimes {
	return versionTimes{byResource: newRecentMap[*answerTimes](maxClocks)}
}

// answerTimes are the answers of one API server about one resource.
type answerTimes struct {
	known []versionTime // versions and times grow
	ahead []versionTime // in the order of arrival, until existedBefore finds that they are reached
	made  []versionTime // versions of pods and times grow; here the version and all newer ones did not exist at the time
}

// versionTime means that a version and all older ones existed at a time.
type versionTime struct {
	version string
	at      audit.Time
}

func clockKey(r *Request) string { return r.Origin + "\x00" + r.Group + "\x00" + r.Resource }

// recordReached records that the stream has a version.
func (a *versionTimes) recordReached(version string) {
	if a.reached == "" && resourceversion.IsOrdered(version) || isNewer(version, a.reached) {
		a.reached = strings.Clone(version)
	}
}

func isNewer(version, than string) bool { return resourceversion.Order(version, than) > 0 }

func (a *versionTimes) recordAnswer(r *Request) {
	if r.Origin == "" || r.Done == 0 || !resourceversion.IsOrdered(r.Answer.ResourceVersion) {
		return
	}
	times, found := a.byResource.get(clockKey(r))
	if !found {
		times = &answerTimes{}
	}
	if times.ahead = append(times.ahead, versionTime{r.Answer.ResourceVersion, r.Done}); len(times.ahead) > maxVersionTimes {
		a.addReached(times)
		times.ahead = slices.Delete(times.ahead, 0, len(times.ahead)/2)
	}
	if r.created() && r.Resource == "pods" && r.Received != 0 {
		times.addMade(versionTime{r.Answer.ResourceVersion, r.Received})
	}
	a.byResource.putNewest(clockKey(r), times)
}

// addMade records that a request that was received at a time made a version.
func (t *answerTimes) addMade(one versionTime) {
	i, found := slices.BinarySearchFunc(t.made, one.version, compareVersion)
	if found || i > 0 && t.made[i-1].at >= one.at {
		return // already known not to exist at that time
	}
	to := i // newer versions with no later time follow from this one
	for to < len(t.made) && t.made[to].at <= one.at {
		to++
	}
	t.made = slices.Replace(t.made, i, to, one)
	if len(t.made) > maxVersionTimes {
		t.made = slices.Delete(t.made, 0, len(t.made)-maxVersionTimes)
	}
}

// addReached makes the answers known whose versions the stream has reached.
func (a *versionTimes) addReached(times *answerTimes) {
	times.ahead = slices.DeleteFunc(times.ahead, func(t versionTime) bool {
		if a.reached == "" || isNewer(t.version, a.reached) {
			return false
		}
		times.addKnown(t)
		return true
	})
}

func (t *answerTimes) addKnown(one versionTime) {
	i, found := slices.BinarySearchFunc(t.known, one.version, compareVersion)
	if i < len(t.known) && t.known[i].at <= one.at {
		return // already known to exist at that time
	}
	from := i // older versions with no earlier time follow from this one
	for from > 0 && t.known[from-1].at >= one.at {
		from--
	}
	if found {
		i++
	}
	t.known = slices.Replace(t.known, from, i, one)
	if len(t.known) > maxVersionTimes {
		t.known = slices.Delete(t.known, 0, len(t.known)-maxVersionTimes)
	}
}

// existedBefore reports whether a version certainly existed before a request was received, so that the request found it.
func (a *versionTimes) existedBefore(r *Request, version string) bool {
	if r.Received == 0 || !resourceversion.IsOrdered(version) {
		return false
	}
	times, found := a.byResource.get(clockKey(r))
	if !found {
		return false
	}
	a.addReached(times)
	i, _ := slices.BinarySearchFunc(times.known, version, compareVersion)
	return i < len(times.known) && times.known[i].at < r.Received
}

// madeAfter reports whether a version of a pod certainly did not exist when a request had been answered: the same API server
// received the request later that made this version or an older one.
func (a *versionTimes) madeAfter(r *Request, version string) bool {
	times, found := a.byResource.get(clockKey(r))
	if !found || r.Done == 0 || !resourceversion.IsOrdered(version) {
		return false
	}
	i, exact := slices.BinarySearchFunc(times.made, version, compareVersion)
	if !exact {
		i--
	}
	return i >= 0 && times.made[i].at > r.Done
}

func compareVersion(a versionTime, version string) int {
	return resourceversion.Order(a.version, version)
}
