package selection

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

var (
	resourceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	groupName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	versionName  = regexp.MustCompile(`^v[0-9]+((alpha|beta)[0-9]+)?$`)
)

// pattern is one name of Select or Exclude.
type pattern struct {
	text     string
	resource string // "*" for all
	anyGroup bool
	group    string // "" is the core group
	version  string // "" leaves the choice to the API server
}

func parsePattern(text string) (pattern, error) {
	p := pattern{text: text}
	switch {
	case text == "*":
		p.resource, p.anyGroup = "*", true
		return p, nil
	case strings.TrimSpace(text) != text || text == "":
		return p, fmt.Errorf(`%q is not a resource: write it as kubectl does, for example "pods" or "deployments.apps"`, text)
	case strings.ContainsRune(text, '/'):
		return p, fmt.Errorf(`%q: subresources and "group/version" are not supported here: write "resource.group", for example "deployments.apps"`, text)
	case strings.ToLower(text) != text:
		return p, fmt.Errorf("%q is not a resource: use the plural in lower case, not the kind", text)
	}
	p.resource, p.group, _ = strings.Cut(text, ".")
	if version, group, ok := strings.Cut(p.group, "."); (ok || p.group == version) && versionName.MatchString(version) {
		p.version, p.group = version, group
	}
	if p.group == "core" {
		p.group = ""
	}
	if p.resource != "*" && !resourceName.MatchString(p.resource) {
		return p, fmt.Errorf(`%q: %q is not a resource; the only wildcard is "*" alone`, text, p.resource)
	}
	if p.group != "" && !groupName.MatchString(p.group) || strings.HasSuffix(text, ".") {
		return p, fmt.Errorf("%q: %q is not an API group", text, p.group)
	}
	return p, nil
}

// parsePatterns parses valid names.
func parsePatterns(texts []string) []pattern {
	all := make([]pattern, 0, len(texts))
	for _, text := range texts {
		if p, err := parsePattern(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func anyMatches(all []pattern, r event.Resource) bool {
	return slices.ContainsFunc(all, func(p pattern) bool { return p.matchesResource(r) })
}

func (p pattern) matchesResource(r event.Resource) bool {
	return (p.anyGroup || p.group == r.Group) && (p.resource == "*" || p.resource == r.Resource)
}

// isWildcard reports whether the pattern does not name a particular resource.
func (p pattern) isWildcard() bool { return p.resource == "*" }

// coversPattern reports whether p names everything that q names, in any version. A resource is selected in one of its
// versions, so a pattern with a version can leave a resource to one without.
func (p pattern) coversPattern(q pattern) bool {
	sameGroup := p.anyGroup || !q.anyGroup && p.group == q.group
	sameName := p.resource == "*" || p.resource == q.resource
	return sameGroup && sameName && (p.version == "" || p.version == q.version)
}

// overlaps reports whether p and q can name the same resource.
func (p pattern) overlaps(q pattern) bool {
	return (p.anyGroup || q.anyGroup || p.group == q.group) &&
		(p.resource == "*" || q.resource == "*" || p.resource == q.resource)
}

// nameCharacters are the characters of a namespace's name (RFC 1123 label). It does not begin or end with the last one.
const nameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789-"

// maxNamespaceLength is the longest name of a namespace.
const maxNamespaceLength = 63

// maxGlobStates bounds a search for a name. Globs with many "*" can have a large number of states.
const maxGlobStates = 1024

// characterSet has bit i for nameCharacters[i].
type characterSet uint64

const anyCharacter characterSet = 1<<len(nameCharacters) - 1

func charactersBetween(low, high rune) (set characterSet) {
	for i, c := range nameCharacters {
		if low <= c && c <= high {
			set |= 1 << i
		}
	}
	return set
}

// globToken is a part of a glob: any text, or one character of a set.
type globToken struct {
	anyText    bool
	characters characterSet
}

// parseGlob returns the tokens of a glob, as path.Match reads it. An invalid one matches nothing.
func parseGlob(glob string) (tokens []globToken) {
	if _, err := path.Match(glob, ""); err != nil {
		return []globToken{{}}
	}
	for rest := []rune(glob); len(rest) > 0; {
		var one globToken
		switch rest[0] {
		case '*':
			one.anyText, rest = true, rest[1:]
		case '?':
			one.characters, rest = anyCharacter, rest[1:]
		case '[':
			one.characters, rest = parseClass(rest[1:])
		default:
			var c rune
			c, rest = unescapeFirst(rest)
			one.characters = charactersBetween(c, c)
		}
		tokens = append(tokens, one)
	}
	return tokens
}

// parseClass reads a class of characters, without its "[", and returns what follows.
func parseClass(rest []rune) (set characterSet, after []rune) {
	negated := rest[0] == '^'
	if negated {
		rest = rest[1:]
	}
	for rest[0] != ']' {
		var low, high rune
		low, rest = unescapeFirst(rest)
		if high = low; rest[0] == '-' {
			high, rest = unescapeFirst(rest[1:])
		}
		set |= charactersBetween(low, high)
	}
	if negated {
		set = anyCharacter &^ set
	}
	return set, rest[1:]
}

func unescapeFirst(rest []rune) (c rune, after []rune) {
	if rest[0] == '\\' {
		rest = rest[1:]
	}
	return rest[0], rest[1:]
}

// globPositions are the positions in the tokens of one glob, 0 to len(tokens), that a text leads to.
type globPositions []bool

// skipAnyText adds the positions behind tokens that match the empty text.
func (p globPositions) skipAnyText(tokens []globToken) globPositions {
	for i, t := range tokens {
		p[i+1] = p[i+1] || p[i] && t.anyText
	}
	return p
}

// advance returns the positions after one more character.
func (p globPositions) advance(tokens []globToken, character int) globPositions {
	next := make(globPositions, len(p))
	for i, t := range tokens {
		switch {
		case p[i] && t.anyText:
			next[i] = true
		case p[i] && t.characters&(1<<character) != 0:
			next[i+1] = true
		}
	}
	return next.skipAnyText(tokens)
}

// nameSearch searches the names of namespaces by their matches with several globs.
type nameSearch struct {
	globs      [][]globToken
	characters []int // in nameCharacters: one of those that no glob tells apart
	seen       map[string]bool
}

func (s *nameSearch) chooseCharacters() {
	tokens := slices.Concat(s.globs...)
	chosen := map[string]bool{}
	for i := range nameCharacters {
		var kind []byte
		for _, t := range tokens {
			kind = append(kind, byte(t.characters>>i&1))
		}
		if key := string(kind); !chosen[key] || nameCharacters[i] == '-' { // a name does not begin or end with it
			chosen[key] = true
			s.characters = append(s.characters, i)
		}
	}
}

// namePrefix is the begin of names, and where it leads in each glob.
type namePrefix struct{ positions []globPositions }

func (p namePrefix) matches() (all []bool) {
	for _, one := range p.positions {
		all = append(all, one[len(one)-1])
	}
	return all
}

// existsName reports whether a namespace can have a name with which the globs match as accepts wants it: matches[i] is
// whether globs[i] does. If the search takes too long, that is assumed.
func existsName(globs []string, accepts func(matches []bool) bool) bool {
	s := nameSearch{seen: map[string]bool{}}
	var empty namePrefix
	for _, glob := range globs {
		tokens := parseGlob(glob)
		start := make(globPositions, len(tokens)+1)
		start[0] = true
		s.globs, empty.positions = append(s.globs, tokens), append(empty.positions, start.skipAnyText(tokens))
	}
	s.chooseCharacters()
	prefixes := []namePrefix{empty}
	for length := 1; length <= maxNamespaceLength && len(prefixes) > 0; length++ {
		var longer []namePrefix
		for _, p := range prefixes {
			for _, i := range s.characters {
				hyphen := nameCharacters[i] == '-'
				if hyphen && length == 1 {
					continue
				}
				next := s.append(p, i)
				if !hyphen && accepts(next.matches()) || len(s.seen) > maxGlobStates {
					return true
				}
				if s.isNew(next) {
					longer = append(longer, next)
				}
			}
		}
		prefixes = longer
	}
	return false
}

func (s *nameSearch) append(p namePrefix, character int) namePrefix {
	next := namePrefix{make([]globPositions, len(s.globs))}
	for i, tokens := range s.globs {
		next.positions[i] = p.positions[i].advance(tokens, character)
	}
	return next
}

// isNew reports whether no shorter name, and no other of this length, has led to the same positions.
func (s *nameSearch) isNew(p namePrefix) bool {
	var key []byte
	for _, at := range slices.Concat(p.positions...) {
		key = append(key, '0')
		if at {
			key[len(key)-1] = '1'
		}
	}
	known := s.seen[string(key)]
	s.seen[string(key)] = true
	return !known
}

func (n Namespaces) globs() []string { return slices.Concat(n.Include, n.Exclude) }

// selectsBy reports whether a namespace is selected, by its matches with the globs.
func (n Namespaces) selectsBy(matches []bool) bool {
	included, excluded := matches[:len(n.Include)], matches[len(n.Include):]
	return (len(included) == 0 || slices.Contains(included, true)) && !slices.Contains(excluded, true)
}

// selectsNothing reports whether no name of a namespace is selected.
func (n Namespaces) selectsNothing() bool { return !existsName(n.globs(), n.selectsBy) }

// excludesIncluded reports whether Exclude leaves out everything that Include selects.
func (n Namespaces) excludesIncluded() bool {
	return len(n.Include) > 0 && n.selectsNothing() && !Namespaces{Include: n.Include}.selectsNothing()
}

// ExcludesAll reports whether Exclude matches every namespace.
func (n Namespaces) ExcludesAll() bool { return Namespaces{Exclude: n.Exclude}.selectsNothing() }

// Overlaps reports whether some namespace can be selected by both.
func (n Namespaces) Overlaps(other Namespaces) bool {
	own := n.globs()
	return existsName(slices.Concat(own, other.globs()), func(matches []bool) bool {
		return n.selectsBy(matches[:len(own)]) && other.selectsBy(matches[len(own):])
	})
}

// Covers reports whether n certainly selects every namespace that other selects.
func (n Namespaces) Covers(other Namespaces) bool {
	own := n.globs()
	return !existsName(slices.Concat(own, other.globs()), func(matches []bool) bool {
		return !n.selectsBy(matches[:len(own)]) && other.selectsBy(matches[len(own):])
	})
}
