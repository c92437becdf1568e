package selection

import (
	"fmt"
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

// maxNamespaceLength is the longest name of a namespace.
const maxNamespaceLength = 63

// excludesIncluded reports whether Exclude certainly leaves out everything that Include selects.
func (n Namespaces) excludesIncluded() bool {
	return len(n.Include) > 0 && !slices.ContainsFunc(n.Include, func(glob string) bool { return !anyCovers(n.Exclude, glob) })
}

// ExcludesAll reports whether a glob of Exclude matches every namespace: "*" or "?*".
func (n Namespaces) ExcludesAll() bool { return slices.ContainsFunc(n.Exclude, matchesEverything) }

func matchesEverything(glob string) bool {
	return strings.Trim(glob, "*?") == "" && strings.Contains(glob, "*") && strings.Count(glob, "?") <= 1
}

// anyCovers reports whether one of the globs certainly matches all that another glob, or a name, does. A "*" matches the
// text of any glob.
func anyCovers(globs []string, other string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		return glob == other || matchesEverything(glob) ||
			(!isGlob(other) || !strings.ContainsAny(glob, `?[\`)) && matchesAny([]string{glob}, other)
	})
}

// Overlaps reports whether some namespace may be selected by both. Two globs may always match one name.
func (n Namespaces) Overlaps(other Namespaces) bool {
	if n.ExcludesAll() || other.ExcludesAll() {
		return false
	}
	for _, pair := range [][2]Namespaces{{n, other}, {other, n}} {
		if names := pair[0].Names(); names != nil {
			selects := pair[1].Filter()
			return len(names) > 0 && (selects == nil || slices.ContainsFunc(names, selects))
		}
	}
	return true
}

// Covers reports whether n certainly selects every namespace that other selects.
func (n Namespaces) Covers(other Namespaces) bool {
	if names := other.Names(); names != nil {
		selects := n.Filter()
		return selects == nil || !slices.ContainsFunc(names, func(name string) bool { return !selects(name) })
	}
	included := len(n.Include) == 0 || slices.ContainsFunc(n.Include, matchesEverything) ||
		len(other.Include) > 0 && !slices.ContainsFunc(other.Include, func(glob string) bool { return !anyCovers(n.Include, glob) })
	return included && !slices.ContainsFunc(n.Exclude, func(glob string) bool { return !anyCovers(other.Exclude, glob) })
}
