package selection

import (
	"strings"
	"testing"
)

// TestNamespacesAreCompared: names are known to match globs or not, and a glob covers another by its text.
func TestNamespacesAreCompared(t *testing.T) {
	set := func(include, exclude string) Namespaces {
		return Namespaces{Include: strings.Fields(include), Exclude: strings.Fields(exclude)}
	}
	for _, c := range []struct {
		a, b             Namespaces
		covers, overlaps bool // a covers b
	}{
		{set("", ""), set("team-*", ""), true, true}, {set("team-*", ""), set("", ""), false, true},
		{set("team-* web", ""), set("team-*", ""), true, true}, {set("team-*", "team-x"), set("team-*", "team-x team-y"), true, true},
		{set("team-*", "team-x"), set("team-*", ""), false, true}, {set("*-dev", ""), set("team-*", ""), false, true},
		{set("prod-*", ""), set("team-a", ""), false, false}, {set("team-*", ""), set("team-a", ""), true, true},
		{set("*", "a*"), set("a", ""), false, false}, {set("*", ""), set("", ""), true, true}, {set("", "*"), set("a", ""), false, false},
		{set("team-*", ""), set("team-a team-b-* team-[xy]", ""), true, true}, {set("team-?", ""), set("team-*", ""), false, true},
		{set("team-?", ""), set("team-a", ""), true, true}, {set("?*", ""), set("", ""), true, true}, {set("??*", ""), set("*", ""), false, true},
		{set("a b", ""), set("b", ""), true, true}, {set("a", ""), set("b", ""), false, false}, {set("a", "a"), set("a", ""), false, false},
	} {
		if c.a.Covers(c.b) != c.covers || c.a.Overlaps(c.b) != c.overlaps || c.b.Overlaps(c.a) != c.overlaps {
			t.Errorf("%v and %v: covers %t, overlaps %t", c.a, c.b, c.a.Covers(c.b), c.a.Overlaps(c.b))
		}
	}
}
