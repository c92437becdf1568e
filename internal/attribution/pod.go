package attribution

import (
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// state is what the join has to know of the state of a pod. A binding and an eviction are answered without naming the
// object, but each changes something that nothing else changes.
type state struct {
	bound   bool // has a node: only a binding gives one to a pod that exists
	evicted bool // has the condition that an eviction sets before it deletes
	over    bool // is marked, and nothing is waited for: the request that marked it deletes it, too
}

func isPod(r event.Resource) bool { return r.Group == "" && r.Resource == "pods" }

// stateOf reads the state that a change of a pod leaves behind. ok is false for other objects, and without a body.
func stateOf(c *event.Change) (s state, ok bool) {
	if !isPod(c.Resource) || len(c.After) == 0 {
		return state{}, false
	}
	var deleting, held, grace bool
	each(c.After, 0, func(key string, b []byte, i int) {
		switch key {
		case "metadata":
			each(b, i, func(key string, b []byte, i int) {
				switch key {
				case "deletionTimestamp":
					deleting = b[i] == '"'
				case "deletionGracePeriodSeconds":
					grace = b[i] != '0'
				case "finalizers":
					held = b[i] == '['
				}
			})
		case "spec":
			each(b, i, func(key string, b []byte, i int) { s.bound = s.bound || key == "nodeName" && text(b, i) != "" })
		case "status":
			each(b, i, func(key string, b []byte, i int) { s.evicted = s.evicted || key == "conditions" && evicted(b, i) })
		}
	})
	s.over = deleting && !held && !grace
	return s, true
}

// evicted says whether the conditions at i have the one of an eviction.
func evicted(b []byte, i int) bool {
	if b[i] != '[' {
		return false
	}
	found := false
	for e := rawjson.EnterArray(b, i); e.Next(); e.I = rawjson.PassValue(b, e.I) {
		var kind, reason string
		each(b, e.I, func(key string, b []byte, i int) {
			switch key {
			case "type":
				kind = text(b, i)
			case "reason":
				reason = text(b, i)
			}
		})
		found = found || kind == "DisruptionTarget" && reason == "EvictionByEvictionAPI"
	}
	return found
}

// each calls f with the members of the object at i. Bodies in the journal are well-formed.
func each(b []byte, i int, f func(key string, b []byte, i int)) {
	if b[i] != '{' {
		return
	}
	for m := rawjson.Enter(b, i); m.Next(); m.I = rawjson.PassValue(b, m.I) {
		f(string(m.Key), b, m.I)
	}
}

// text returns the string at i; "" where there is none.
func text(b []byte, i int) string {
	if b[i] != '"' {
		return ""
	}
	return string(rawjson.Text(b[i:rawjson.SkipString(b, i)]))
}
