package shape

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// PathCounter counts the objects in which each path of a policy matches something. Not safe for concurrent use.
type PathCounter struct {
	Objects int // objects inspected
	Paths   []PathCount
	trees   []*path.Tree
	parsed  []path.Path

	redacted map[int]path.Path // those of redactPaths, by index; apart from metadata, which each object has
	covered  *path.Tree        // by all of them
	places   []typePlaces      // of each type that was added with AddSchema
}

// PathCount is the count of one path.
type PathCount struct {
	Key     string // within the rule: "redactPaths[0]"
	Path    string // as configured
	Matched int    // objects in which it matches
	// Match is the best of all types that were added with AddSchema or AddObject, and Nearest, where it is PathAbsent, the
	// nearest path of a schema or "".
	Match   PathMatch
	Nearest string
}

// NewPathCounter returns a counter for all paths of a policy, which must be valid.
func (p Policy) NewPathCounter() (*PathCounter, error) {
	c := &PathCounter{redacted: map[int]path.Path{}}
	for key, texts := range p.pathsByKey() {
		for i, text := range texts {
			c.Paths = append(c.Paths, PathCount{Key: fmt.Sprintf("%s[%d]", key, i), Path: text})
		}
	}
	slices.SortFunc(c.Paths, func(a, b PathCount) int { return strings.Compare(a.Key, b.Key) })
	for i, counted := range c.Paths {
		parsed, err := parsePaths([]string{counted.Path})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", counted.Key, err)
		}
		t, err := path.NewTree(parsed)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", counted.Key, err)
		}
		c.trees, c.parsed = append(c.trees, t), append(c.parsed, parsed[0])
		if strings.HasPrefix(counted.Key, "redactPaths[") && parsed[0][0].Name != "metadata" {
			c.redacted[i] = parsed[0]
		}
	}
	var err error
	c.covered, err = path.NewTree(slices.Collect(maps.Values(c.redacted)))
	return c, err
}

// PathsOutside returns the paths of a policy that match nothing in objects of a schema. Invalid paths are left out.
func (p Policy) PathsOutside(s *Schema) (outside []PathCount) {
	c, err := p.NewPathCounter()
	if err != nil {
		return nil
	}
	c.AddSchema(s)
	return slices.DeleteFunc(c.Paths, func(one PathCount) bool { return one.Match != PathAbsent })
}

// AllMatch reports whether each path matches in some type, or may match because its schema is open.
func (c *PathCounter) AllMatch() bool {
	return !slices.ContainsFunc(c.Paths, func(p PathCount) bool { return p.Match < PathPossible })
}

// AddSchema matches the paths with the schema of one type.
func (c *PathCounter) AddSchema(s *Schema) {
	for i := range c.Paths {
		c.Paths[i].addMatch(s.Match(c.parsed[i]))
	}
	if len(c.redacted) > 0 {
		c.places = append(c.places, s.findPlaces(c.redacted, c.covered))
	}
}

// Add adds the counts of a counter of the same policy, for other types.
func (c *PathCounter) Add(other *PathCounter) {
	c.Objects += other.Objects
	c.places = append(c.places, other.places...)
	for i, p := range other.Paths {
		c.Paths[i].Matched += p.Matched
		c.Paths[i].addMatch(p.Match, p.Nearest)
	}
}

// addMatch adds the match with a type, and where that is PathAbsent the nearest path or "".
func (p *PathCount) addMatch(match PathMatch, nearest string) {
	if p.Nearest == "" {
		p.Nearest = nearest
	}
	if p.Match = max(p.Match, match); p.Match > PathAbsent {
		p.Nearest = ""
	}
}

// AddObject counts the paths that match in one object. Invalid JSON matches nothing.
func (c *PathCounter) AddObject(object []byte) {
	c.Objects++
	for i, t := range c.trees {
		if f := (pathSearch{b: object}); f.searchValue(rawjson.SkipSpace(object, 0), t, 0) >= 0 && f.found {
			c.Paths[i].Matched++
			c.Paths[i].Match, c.Paths[i].Nearest = PathKnown, ""
		}
		c.Paths[i].Match = max(c.Paths[i].Match, PathAbsent)
	}
}

// pathSearch searches one object for one path.
type pathSearch struct {
	b     []byte
	found bool
}

func (f *pathSearch) searchValue(i int, t *path.Tree, depth int) int {
	switch {
	case f.found || t == nil || i >= len(f.b) || depth > rawjson.MaxDepth:
		return rawjson.SkipValue(f.b, i, depth)
	case t.Ends:
		f.found = true
		return rawjson.SkipValue(f.b, i, depth)
	case f.b[i] == '{':
		m := rawjson.EnterObject(f.b, i)
		for m.Next() {
			m.I = f.searchValue(m.I, t.Member(m.Key), depth+1)
		}
		return m.I
	case f.b[i] == '[':
		e := rawjson.EnterArray(f.b, i)
		for e.Next() {
			e.I = f.searchValue(e.I, t.Element, depth+1)
		}
		return e.I
	}
	return rawjson.SkipValue(f.b, i, depth)
}
