package attribution

import (
	"container/list"
	"strings"
)

// recentMap is a map that keeps no more than max entries: those that were put last.
type recentMap[V any] struct {
	max   int
	all   map[string]*list.Element // their values are entries
	order *list.List               // oldest first
}

type recentEntry[V any] struct {
	key   string
	value V
}

func newRecentMap[V any](max int) recentMap[V] {
	return recentMap[V]{max: max, all: map[string]*list.Element{}, order: list.New()}
}

// putNewest adds or replaces an entry. made says that another one had to make room, which is returned.
func (n *recentMap[V]) putNewest(key string, v V) (gone V, made bool) {
	n.remove(key)
	key = strings.Clone(key)
	n.all[key] = n.order.PushBack(recentEntry[V]{key, v})
	if n.order.Len() <= n.max {
		return gone, false
	}
	oldest := n.order.Remove(n.order.Front()).(recentEntry[V])
	delete(n.all, oldest.key)
	return oldest.value, true
}

// remove removes an entry and returns it.
func (n *recentMap[V]) remove(key string) (v V, there bool) {
	e, there := n.all[key]
	if !there {
		return v, false
	}
	delete(n.all, key)
	return n.order.Remove(e).(recentEntry[V]).value, true
}

// get returns an entry, which stays as old as it is.
func (n *recentMap[V]) get(key string) (v V, there bool) {
	e, there := n.all[key]
	if !there {
		return v, false
	}
	return e.Value.(recentEntry[V]).value, true
}
