package selection

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestGlobsAreReadAsPathMatchReadsThem compares the search for a name with path.Match on all names of up to three of a few
// characters.
func TestGlobsAreReadAsPathMatchReadsThem(t *testing.T) {
	var names []string
	for _, first := range []string{"a", "b", "z", "0"} {
		names = append(names, first)
		for _, second := range []string{"a", "b", "z", "0"} {
			names = append(names, first+second, first+"-"+second, first+"a"+second, first+"z"+second)
		}
	}
	parts := []string{"a", "b", "-", "*", "?", "[ab]", "[^a]", "[a-y]", "[y-a]", `\a`, `[\a]`, "[!a]", "z", "0", "é"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		glob := ""
		for range 1 + random.IntN(4) {
			glob += parts[random.IntN(len(parts))]
		}
		if _, err := path.Match(glob, ""); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			want, _ := path.Match(glob, name)
			got := existsName([]string{glob, name}, func(matches []bool) bool { return matches[0] && matches[1] })
			if got != want {
				t.Fatalf("%q matches %q: %t, want %t", glob, name, got, want)
			}
		}
	}
}

func TestNamespacesAreComparedAsSets(t *testing.T) {
	set := func(include, exclude string) Namespaces {
		return Namespaces{Include: strings.Fields(include), Exclude: strings.Fields(exclude)}
	}
	for _, c := range []struct {
		a, b             Namespaces
		covers, overlaps bool // a covers b
	}{
		{set("", ""), set("team-*", ""), true, true}, {set("team-*", ""), set("", ""), false, true},
		{set("team-*", ""), set("team-a team-b-*", ""), true, true}, {set("team-*", "team-x"), set("team-*", "team-x team-y"), true, true},
		{set("team-*", "team-x"), set("team-*", ""), false, true}, {set("team-?*", ""), set("team-?", ""), true, true},
		{set("*-dev", ""), set("team-*", ""), false, true}, {set("a* b*", ""), set("[ab]*", ""), true, true},
		{set("prod-*", ""), set("team-a", ""), false, false}, {set("?", ""), set("??*", ""), false, false}, {set("*", "a*"), set("a", ""), false, false},
		{set("[a-m]* [n-z]* [0-9]*", ""), set("", ""), true, true}, {set("[a-m]* [n-y]* [0-9]*", ""), set("", ""), false, true},
		{set("?*", ""), set("*", ""), true, true}, {set("??*", ""), set("*", ""), false, true},
		{set(strings.Repeat("?", 63), ""), set(strings.Repeat("?", 62)+"*", "?*[a-y0-9] z*"), false, true},
	} {
		if c.a.Covers(c.b) != c.covers || c.a.Overlaps(c.b) != c.overlaps || c.b.Overlaps(c.a) != c.overlaps {
			t.Errorf("%v and %v: covers %t, overlaps %t", c.a, c.b, c.a.Covers(c.b), c.a.Overlaps(c.b))
		}
	}
}

// TestSearchForANameEnds with globs that together have many states: then a name is assumed.
func TestSearchForANameEnds(t *testing.T) {
	var globs []string
	for i := range 40 {
		globs = append(globs, fmt.Sprintf("*%c*%c*%c*", 'a'+i%26, 'a'+(i*7+3)%26, 'a'+(i*11+5)%26))
	}
	if !existsName(globs, func(matches []bool) bool { return !slices.Contains(matches, false) }) {
		t.Error("no name matches all of them")
	}
}
