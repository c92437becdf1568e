package shape

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// beforeFull is the value of Policy.Before that stores states; the other value is none.
const beforeFull = "full"

// Policy configures how the changes of one rule's resources are shaped. A zero value means the default.
type Policy struct {
	// How secret values are redacted: mask ("***"), drop, hmac (a keyed hash; needs redaction.key) or none (only where
	// select lists secrets by name).
	Redact string `mapstructure:"redact"`
	// Additional secret values: paths such as spec.containers[*].env[*].value. See docs/shaping.md.
	RedactPaths []string `mapstructure:"redactPaths"`
	// Hashes of redact: hmac.
	HMAC HashOptions `mapstructure:"hmac"`
	// Labels and annotations of Secrets that are shown.
	SecretMetadata SecretMetadata `mapstructure:"secretMetadata"`
	// Whether updates carry the state before them: none or full, which stores the last state of every object. A sink with
	// format: debezium turns it on everywhere.
	Before string `mapstructure:"before"`
	// How updates list their differences: none, paths or values (path, from and to). The latter two store states.
	Changed string `mapstructure:"changed"`
	// Updates are emitted only if a value at these paths changed.
	OnlyIfChanged []string `mapstructure:"onlyIfChanged"`
	// Updates are not emitted if only values at these paths changed.
	IgnoreChanges []string `mapstructure:"ignoreChanges"`
	// A CEL expression: changes for which it is false are not emitted. See docs/shaping.md.
	Filter string `mapstructure:"filter"`
	// Members of the objects that are emitted.
	Fields Fields `mapstructure:"fields"`
	// Annotations that each object has in addition, such as the environment; redacted and filtered as its own.
	AddAnnotations []Annotation `mapstructure:"addAnnotations"`
}

// Fields selects members of objects. Members that identify the object are always kept: apiVersion, kind, and of metadata the
// name, namespace, uid and resourceVersion.
type Fields struct {
	// Paths to remove.
	Drop []string `mapstructure:"drop"`
	// Paths to keep, all others are removed; drop is applied to the result. Empty keeps all.
	Keep []string `mapstructure:"keep"`
}

// Validate returns all problems of the policy, each prefixed with its path, which starts with at. keyed reports whether a
// key for hashes is configured.
func (p Policy) Validate(at string, keyed bool) error {
	var all []error
	problem := func(key, format string, args ...any) {
		all = append(all, fmt.Errorf(at+"."+key+": "+format, args...))
	}
	oneOf := func(key, value string, known ...string) {
		if value != "" && !slices.Contains(known, value) {
			problem(key, "unknown value: found %q, expected one of %s", value, strings.Join(known, ", "))
		}
	}
	oneOf("redact", p.Redact, Mask, Drop, HMAC, None)
	oneOf("hmac.scope", p.HMAC.Scope, scopeObject, scopeGlobal)
	oneOf("before", p.Before, "none", beforeFull)
	oneOf("changed", p.Changed, changedNone, changedPaths, ChangedValues)
	p.validateRedaction(problem, keyed)
	validateAnnotations(problem, p.AddAnnotations)
	if len(p.OnlyIfChanged) > 0 && len(p.IgnoreChanges) > 0 {
		problem("ignoreChanges", "cannot be combined with onlyIfChanged; remove one of them")
	}
	for i, watched := range readTree(problem, "onlyIfChanged", p.OnlyIfChanged) {
		if isWithin(watched, constantPaths) {
			problem("onlyIfChanged["+strconv.Itoa(i)+"]", "found %q, which no update changes, expected a path that changes", p.OnlyIfChanged[i])
		}
	}
	readTree(problem, "ignoreChanges", p.IgnoreChanges)
	dropped := readTree(problem, "fields.drop", p.Fields.Drop)
	for i, kept := range readTree(problem, "fields.keep", p.Fields.Keep) {
		j := slices.IndexFunc(dropped, func(d path.Path) bool { return kept != nil && d != nil && d.Includes(kept) })
		if j >= 0 {
			problem("fields.keep["+strconv.Itoa(i)+"]", "found %q, which fields.drop[%d], %q, removes again, expected a path beside it",
				p.Fields.Keep[i], j, p.Fields.Drop[j])
		}
	}
	if p.Filter != "" {
		if _, err := filter.Compile(p.Filter, true); err != nil {
			problem("filter", "%w", err)
		}
	}
	return errors.Join(all...)
}

// constantPaths are members that no update of an object changes.
var constantPaths = []path.Path{
	path.OfNames("kind"), path.OfNames("metadata", "name"), path.OfNames("metadata", "namespace"), path.OfNames("metadata", "uid"),
	path.OfNames("metadata", "creationTimestamp"), path.OfNames("metadata", "selfLink"),
}

// isWithin reports whether one of the paths includes everything that p selects. p may be nil.
func isWithin(p path.Path, paths []path.Path) bool {
	return p != nil && slices.ContainsFunc(paths, func(one path.Path) bool { return one.Includes(p) })
}

func (p Policy) validateRedaction(problem problemFunc, keyed bool) {
	switch {
	case p.Redact == HMAC && !keyed:
		problem("redact", "hmac needs a key: set redaction.key")
	case p.Redact == None && len(p.RedactPaths) > 0:
		problem("redactPaths", "has no effect with redact: none")
	}
	p.SecretMetadata.validateNames(problem)
	for i, named := range readTree(problem, "redactPaths", p.RedactPaths) {
		for _, id := range identityPaths {
			if named != nil && named.Overlaps(id) {
				problem("redactPaths["+strconv.Itoa(i)+"]",
					"%q includes a member that identifies the object (%s)", p.RedactPaths[i], id)
				break
			}
		}
	}
}

// problemFunc records a problem with a configuration key.
type problemFunc func(key, format string, args ...any)

// readTree parses paths like readPaths, and checks that they can be combined.
func readTree(problem problemFunc, key string, texts []string) []path.Path {
	paths := readPaths(problem, key, texts)
	if _, err := path.NewTree(paths); err != nil {
		problem(key, "%w", err)
	}
	return paths
}

// maxPaths bounds the number of paths in one list of a rule.
const maxPaths = 100

// readPaths parses the paths under a key. Invalid paths are reported and are nil in the result.
func readPaths(problem problemFunc, key string, texts []string) []path.Path {
	if len(texts) > maxPaths {
		problem(key, "%d paths, at most %d are allowed", len(texts), maxPaths)
		return nil
	}
	paths := make([]path.Path, len(texts))
	for i, text := range texts {
		var err error
		if paths[i], err = path.Parse(text); err != nil {
			problem(key+"["+strconv.Itoa(i)+"]", "%w", err)
		}
	}
	return paths
}

// parseAllPaths returns the paths of the policy by their key.
func (p Policy) parseAllPaths() (all map[string][]path.Path, err error) {
	all = map[string][]path.Path{}
	for key, texts := range p.pathsByKey() {
		if all[key], err = parsePaths(texts); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return all, nil
}

// shapeID returns an ID of what the policy leaves out of changes, and of which updates, apart from redaction and filter.
func (p Policy) shapeID() uint32 {
	return hashDescription(fmt.Sprintf("%q %q %q %q", p.OnlyIfChanged, p.IgnoreChanges, p.Fields.Keep, p.Fields.Drop))
}

func (p Policy) redactMode() string {
	if p.Redact == "" {
		return Mask
	}
	return p.Redact
}

func parsePaths(texts []string) ([]path.Path, error) {
	var paths []path.Path
	for _, text := range texts {
		p, err := path.Parse(text)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// Warning is a suspicious but valid setting.
type Warning struct {
	Key     string // within the rule: "redactPaths[0]"
	Message string
}

// Warnings reports paths that start with a member that no built-in resource of Kubernetes has, and those in fields.drop that
// are always kept.
func (p Policy) Warnings() []Warning {
	var all []Warning
	for key, texts := range p.pathsByKey() {
		for i, text := range texts {
			parsed, err := path.Parse(text)
			if err != nil {
				continue
			}
			if key == "fields.drop" && isWithin(parsed, identityPaths) {
				all = append(all, Warning{fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf("%q identifies the object and is always kept", text)})
			}
			if first, yes := parsed.CustomRoot(); yes {
				all = append(all, Warning{fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf(
					"%q starts with %q, which no built-in resource has; it can match only in custom resources",
					text, first)})
			}
		}
	}
	slices.SortFunc(all, func(a, b Warning) int { return strings.Compare(a.Key, b.Key) })
	return all
}

func (p Policy) pathsByKey() map[string][]string {
	return map[string][]string{
		"redactPaths": p.RedactPaths, "onlyIfChanged": p.OnlyIfChanged, "ignoreChanges": p.IgnoreChanges,
		"fields.keep": p.Fields.Keep, "fields.drop": p.Fields.Drop,
	}
}

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
	valid := rawjson.SkipValue(object, rawjson.SkipSpace(object, 0), 0) >= 0
	for i, t := range c.trees {
		if valid && matches(object, t) {
			c.Paths[i].Matched++
			c.Paths[i].Match, c.Paths[i].Nearest = PathKnown, ""
		}
		c.Paths[i].Match = max(c.Paths[i].Match, PathAbsent)
	}
}

// matches reports whether a path ends in a value.
func matches(value rawjson.Value, t *path.Tree) bool {
	if t == nil || len(value) == 0 || t.Ends {
		return t != nil && t.Ends
	}
	for name, inner := range value.Members() {
		if matches(inner, t.Member(name)) {
			return true
		}
	}
	for inner := range value.Elements() {
		if matches(inner, t.Element) {
			return true
		}
	}
	return false
}
