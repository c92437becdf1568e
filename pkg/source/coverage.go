package source

import "slices"

// covers says that p names everything that q names, in whatever version. Of a resource that is served in several versions
// one is taken, so a pattern with a version may leave a resource to one without.
func (p pattern) covers(q pattern) bool {
	sameGroup := p.anyGroup || !q.anyGroup && p.group == q.group
	sameName := p.resource == "*" || p.resource == q.resource
	return sameGroup && sameName && (p.version == "" || p.version == q.version)
}

// meets says that p and q may name the same resource.
func (p pattern) meets(q pattern) bool {
	return (p.anyGroup || q.anyGroup || p.group == q.group) &&
		(p.resource == "*" || q.resource == "*" || p.resource == q.resource)
}

// Takes says whether the rule selects every resource that the name, written as in Select, can mean, and by which of its
// entries. Namespaces and selectors do not count: of several rules the first that selects a resource has it alone.
func (r Rule) Takes(name string) (index int, yes bool) {
	q, err := parsePattern(name)
	if err != nil || slices.ContainsFunc(patterns(r.Exclude), q.meets) {
		return 0, false
	}
	index = slices.IndexFunc(r.Select, func(text string) bool {
		p, err := parsePattern(text)
		return err == nil && p.covers(q)
	})
	return index, index >= 0
}

// Meets says whether some resource may be selected by both rules.
func (r Rule) Meets(other Rule) bool {
	for _, p := range patterns(r.Select) {
		for _, q := range patterns(other.Select) {
			if p.meets(q) && !r.leavesOut(q) && !other.leavesOut(p) && !r.leavesOut(p) && !other.leavesOut(q) {
				return true
			}
		}
	}
	return false
}

// leavesOut says that Exclude covers everything that p names.
func (r Rule) leavesOut(p pattern) bool {
	return slices.ContainsFunc(patterns(r.Exclude), func(x pattern) bool { return x.covers(p) })
}

// Narrows says that the rule takes some objects of its resources only.
func (r Rule) Narrows() bool {
	return len(r.Namespaces.Include)+len(r.Namespaces.Exclude) > 0 || r.LabelSelector != "" || r.FieldSelector != ""
}

// Wildcard says whether a name, written as in Select, stands for several resources.
func Wildcard(name string) bool {
	p, err := parsePattern(name)
	return err == nil && p.wildcard()
}
