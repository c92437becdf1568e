package attribution

import (
	"container/list"
	"strings"
)

// newest is a map that keeps no more than max entries: those that were put last.
type newest[V any] struct {
	max   int
	all   map[string]*list.Element // their values are entries
	order *list.List               // oldest first
}

type entry[V any] struct {
	key   string
	value V
}

func keepNewest[V any](max int) newest[V] {
	return newest[V]{max: max, all: map[string]*list.Element{}, order: list.New()}
}

// put adds or replaces an entry. made says that another one had to make room, which is returned.
func (n *newest[V]) put(key string, v V) (gone V, made bool) {
	n.take(key)
	key = strings.Clone(key)
	n.all[key] = n.order.PushBack(entry[V]{key, v})
	if n.order.Len() <= n.max {
		return gone, false
	}
	oldest := n.order.Remove(n.order.Front()).(entry[V])
	delete(n.all, oldest.key)
	return oldest.value, true
}

// take removes an entry and returns it.
func (n *newest[V]) take(key string) (v V, there bool) {
	e, there := n.all[key]
	if !there {
		return v, false
	}
	delete(n.all, key)
	return n.order.Remove(e).(entry[V]).value, true
}

// get returns an entry, which stays as old as it is.
func (n *newest[V]) get(key string) (v V, there bool) {
	e, there := n.all[key]
	if !there {
		return v, false
	}
	return e.Value.(entry[V]).value, true
}
