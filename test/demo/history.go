package main

import (
	"fmt"
	"maps"
	"slices"
)

// history remembers the newest state of every object that a subscriber has seen, to describe the effect of a change. An
// event carries the whole object, so this is all that a consumer needs for it.
type history map[string]fields // by UID

// tell describes an event of its object in several facts, the most important first.
func (h history) tell(e *event) []string {
	if e.Type == gap {
		return []string{fmt.Sprintf("history from %s to %s was lost: %s", e.Gap.From, e.Gap.To, e.Gap.Reason)}
	}
	if e.Type == deleted {
		delete(h, e.UID)
		if e.Before == nil {
			return []string{"gone"}
		}
		return []string{fmt.Sprintf("gone (its last state: %s)", count(len(fieldsOf(e.Before)), "field"))}
	}
	now := fieldsOf(e.After)
	before, seen := h[e.UID]
	h[e.UID] = now
	if !seen {
		return introduce(now)
	}
	facts := differences(before, now)
	if len(facts) == 0 {
		facts = []string{"nothing but its resourceVersion"}
	}
	return facts
}

// introduce describes an object that was not seen before: by its values if they are few.
func introduce(now fields) []string {
	const few = 3
	if len(now) > few {
		return []string{"new, with " + count(len(now), "field")}
	}
	var all []string
	for _, path := range slices.Sorted(maps.Keys(now)) {
		all = append(all, shortPath(path)+"="+shortValue(now[path]))
	}
	return all
}

// count writes a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
