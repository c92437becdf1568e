package attribution

import (
	"container/list"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
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

// versionedState is the state of an object at a version.
type versionedState struct {
	objectState
	version string
}

// nameHolder is the object that has a name.
type nameHolder struct {
	uid      string
	since    time.Time // when its creation was observed; zero: it was not
	creation string    // the version of its creation; "" if that was not observed
}

func newObjectHistory() objectHistory {
	return objectHistory{
		marks:  newRecentMap[*DeleteMark](maxMarks),
		states: newRecentMap[versionedState](maxKnownStates),
		names:  newRecentMap[nameHolder](maxKnownStates),
	}
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

// putMark adds a mark and returns the one that it evicted, or nil.
func (h *objectHistory) putMark(m *DeleteMark) *DeleteMark {
	evicted, full := h.marks.putNewest(m.UID, m)
	if !full {
		return nil
	}
	return evicted
}

// removeMark removes and returns the mark of an object; nil if there is none.
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

// remove removes an entry and returns its value.
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
