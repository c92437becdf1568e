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
