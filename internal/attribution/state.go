package attribution

import (
	"hash/maphash"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// state is what the join has to know of the state of an object. A binding and an eviction are answered without naming the
// object, but each changes something that nothing else changes; and only a delete changes what an object that is being
// deleted waits for.
type state struct {
	bound    bool   // a pod has a node: only a binding gives one to a pod that exists
	evicted  bool   // a pod has the condition that an eviction sets before it deletes
	deleting bool   // has a deletionTimestamp
	over     bool   // is a pod that is deleting, and nothing is waited for: the request that left it so deletes it, too
	waits    uint64 // sum over what is waited for: deletionTimestamp, grace and finalizers
}

func isPod(r event.Resource) bool { return r.Group == "" && r.Resource == "pods" }

var seed = maphash.MakeSeed()

// stateOf reads the state that a change leaves behind. ok is false without a body.
func stateOf(c *event.Change) (s state, ok bool) {
	if len(c.After) == 0 {
		return state{}, false
	}
	pod := isPod(c.Resource)
	each(c.After, 0, func(key string, b []byte, i int) {
		switch {
		case key == "metadata":
			s.readMetadata(b, i)
		case key == "spec" && pod:
			each(b, i, func(key string, b []byte, i int) { s.bound = s.bound || key == "nodeName" && text(b, i) != "" })
		case key == "status" && pod:
			each(b, i, func(key string, b []byte, i int) { s.evicted = s.evicted || key == "conditions" && evicted(b, i) })
		}
	})
	s.over = s.over && pod
	return s, true
}

func (s *state) readMetadata(b []byte, i int) {
	var held, grace bool
	each(b, i, func(key string, b []byte, i int) {
		switch key {
		case "deletionTimestamp":
			s.deleting = b[i] == '"'
		case "deletionGracePeriodSeconds":
			grace = b[i] != '0'
		case "finalizers":
			held = b[i] == '['
		default:
			return
		}
		s.waits += maphash.String(seed, key) ^ maphash.Bytes(seed, b[i:rawjson.PassValue(b, i)])
	})
	s.over = s.deleting && !held && !grace
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
