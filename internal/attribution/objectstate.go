package attribution

import (
	"hash/maphash"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// objectState is the part of an object's state that identifies bindings, evictions and deletions. The answer to a binding
// or an eviction does not name the object, but each of them changes something that no other request changes. A delete of an
// object that is being deleted already changes what the deletion waits for, and nothing else.
type objectState struct {
	bound        bool      // a pod with a node: only a binding gives one to an existing pod
	evicted      bool      // a pod with the condition that an eviction sets before it deletes
	deleting     bool      // has a deletionTimestamp
	deletable    bool      // a deleting pod that nothing delays: the request that left it so also deletes it
	deletionHash uint64    // hash of deletionTimestamp, grace period and finalizers
	created      time.Time // when it certainly existed: creationTimestamp plus its precision; zero if unknown
}

func isPod(r event.Resource) bool { return r.Group == "" && r.Resource == "pods" }

var seed = maphash.MakeSeed()

// readState reads the state after a change. ok is false if the change has no body.
func readState(c *event.Change) (s objectState, ok bool) {
	if len(c.After) == 0 {
		return objectState{}, false
	}
	pod := isPod(c.Resource)
	eachMember(c.After, 0, func(key string, b []byte, i int) {
		switch {
		case key == "metadata":
			s.readMetadata(b, i)
		case key == "spec" && pod:
			eachMember(b, i, func(key string, b []byte, i int) { s.bound = s.bound || key == "nodeName" && stringAt(b, i) != "" })
		case key == "status" && pod:
			eachMember(b, i, func(key string, b []byte, i int) {
				s.evicted = s.evicted || key == "conditions" && hasEvictionCondition(b, i)
			})
		}
	})
	s.deletable = s.deletable && pod
	return s, true
}

func (s *objectState) readMetadata(b []byte, i int) {
	var held, grace bool
	eachMember(b, i, func(key string, b []byte, i int) {
		switch key {
		case "creationTimestamp":
			if t, err := time.Parse(time.RFC3339, stringAt(b, i)); err == nil {
				s.created = t.Add(creationPrecision)
			}
			return
		case "deletionTimestamp":
			s.deleting = b[i] == '"'
		case "deletionGracePeriodSeconds":
			grace = b[i] != '0'
		case "finalizers":
			held = b[i] == '['
		default:
			return
		}
		s.deletionHash += maphash.String(seed, key) ^ maphash.Bytes(seed, b[i:rawjson.SkipTrustedValue(b, i)])
	})
	s.deletable = s.deleting && !held && !grace
}

// hasEvictionCondition reports whether the conditions at i include the one that an eviction sets.
func hasEvictionCondition(b []byte, i int) bool {
	if b[i] != '[' {
		return false
	}
	found := false
	for e := rawjson.EnterArray(b, i); e.Next(); e.I = rawjson.SkipTrustedValue(b, e.I) {
		var kind, reason string
		eachMember(b, e.I, func(key string, b []byte, i int) {
			switch key {
			case "type":
				kind = stringAt(b, i)
			case "reason":
				reason = stringAt(b, i)
			}
		})
		found = found || kind == "DisruptionTarget" && reason == "EvictionByEvictionAPI"
	}
	return found
}

// eachMember calls f for the members of the object at i. Bodies in the journal are well-formed JSON.
func eachMember(b []byte, i int, f func(key string, b []byte, i int)) {
	if b[i] != '{' {
		return
	}
	for m := rawjson.EnterObject(b, i); m.Next(); m.I = rawjson.SkipTrustedValue(b, m.I) {
		f(string(m.Key), b, m.I)
	}
}

// stringAt returns the string at i; "" if it is not a string.
func stringAt(b []byte, i int) string {
	if b[i] != '"' {
		return ""
	}
	return string(rawjson.Unquote(b[i:rawjson.SkipString(b, i)]))
}
