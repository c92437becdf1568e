package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// SelectionRules returns what the rules of a configuration select, in their order, with their filters.
func SelectionRules(resources []Resource) []selection.Rule {
	rules := make([]selection.Rule, len(resources))
	for i, r := range resources {
		rules[i] = r.WithFilter(r.Filter)
	}
	return rules
}

// validateResources checks the rules. hasKey reports whether redaction.key is set.
func validateResources(rep *reporter, rules []Resource, hasKey bool) {
	rep.refuseIf(len(rules) == 0, "resources", Problem{Message: "nothing is selected",
		Expected: `at least one rule, such as - select: ["pods", "deployments.apps"]`})
	names := takenNames{}
	for i, r := range rules {
		at := fmt.Sprintf("resources[%d]", i)
		if r.Name != "" {
			names.validate(rep, at, "rule", r.Name)
		}
		rep.addJoined("", at, r.Rule.Validate(at))
		rep.addJoined("", at, r.Policy.Validate(at, hasKey))
		validateCapture(rep, at, r)
		validateSecretExposure(rep, at, r)
		validateSelectedOnce(rep, at, rules[:i], r)
		validateNamespaces(rep, at+".namespaces", r.Namespaces)
		validateSomeNamespace(rep, at+".namespaces.exclude", r.Rule)
	}
}

// validateCapture reports paths that match nothing because only metadata is read. Where no part of an object but metadata is
// compared, ignoreChanges ignores more than it names, so that is a warning.
func validateCapture(rep *reporter, at string, r Resource) {
	if r.Capture != selection.CaptureMetadata {
		return
	}
	for _, p := range r.PathsOutside(shape.MetadataSchema()) {
		problem := Problem{Message: "no object has this with capture: metadata", Found: strconv.Quote(p.Path),
			Expected: "a path in metadata, or capture: full"}
		if strings.HasPrefix(p.Key, "ignoreChanges") {
			problem.Message = "no object has this with capture: metadata, where every update that leaves metadata as it was is ignored"
			rep.addWarning(at+"."+p.Key, problem)
			continue
		}
		rep.addProblem(at+"."+p.Key, problem)
	}
}

// validateSelectedOnce reports names that select nothing, because an earlier rule, or an earlier name of the same rule,
// selects the resource. The first rule that selects a resource gets all of it, regardless of namespaces and selectors.
func validateSelectedOnce(rep *reporter, at string, earlier []Resource, r Resource) {
	for j, name := range r.Select {
		path := fmt.Sprintf("%s.select[%d]", at, j)
		before := selection.Rule{Select: r.Select[:j]}
		if k, taken := before.SelectsAll(name); taken && !selection.IsWildcard(before.Select[k]) {
			rep.addProblem(path, Problem{Message: fmt.Sprintf("%q is selected already by %s.select[%d]", name, at, k),
				Expected: "every resource once"})
			continue
		}
		for i, first := range earlier {
			k, taken := first.SelectsAll(name)
			if !taken {
				continue
			}
			p := Problem{Message: fmt.Sprintf("%q is selected already by resources[%d].select[%d]", name, i, k), Expected: "every resource once"}
			if first.Select[k] != name {
				p.Message = fmt.Sprintf("%q is never reached: resources[%d].select[%d], %q, selects it first", name, i, k, first.Select[k])
				p.Expected = fmt.Sprintf("this rule before resources[%d], or %q in the exclude of that rule", i, name)
			}
			rep.addProblem(path, p)
			break
		}
	}
}

// validateSecretExposure reports a rule that shows Secrets without selecting them by name.
func validateSecretExposure(rep *reporter, at string, r Resource) {
	if r.Redact != shape.None {
		return
	}
	if i, yes := r.SelectsByWildcard(event.Resource{Resource: "secrets"}); yes {
		rep.addProblem(at+".redact", Problem{Message: fmt.Sprintf("none would show every Secret, because %s.select[%d] is a wildcard", at, i),
			Expected: `a rule of its own that selects "secrets" by name, or "secrets" in the exclude of this rule`})
	}
}

// validateNamespaces reports names that are both included and excluded; the rule itself checks the names.
func validateNamespaces(rep *reporter, at string, n selection.Namespaces) {
	for i, name := range n.Exclude {
		rep.refuseIf(slices.Contains(n.Include, name), fmt.Sprintf("%s.exclude[%d]", at, i),
			Problem{Message: fmt.Sprintf("namespace %q is included and excluded", name)})
	}
}

// validateSomeNamespace reports a rule that excludes every namespace and selects only resources that have one.
func validateSomeNamespace(rep *reporter, at string, r selection.Rule) {
	rep.refuseIf(r.Namespaces.ExcludesAll() && selectsOnly(r.Select, selection.IsNamespaced), at,
		Problem{Message: "excludes every namespace, and each selected resource has one: nothing is selected",
			Found: strings.Join(r.Namespaces.Exclude, ", "), Expected: "some namespaces"})
}

// warnResources warns of rules that select less than they seem to.
func warnResources(rep *reporter, rules []Resource) {
	for i, r := range rules {
		warnShadowedSelections(rep, rules, i)
		warnUnreachedVersions(rep, rules, i)
		warnUnreachedRedaction(rep, rules, i)
		for _, w := range r.Warnings() {
			rep.addWarning(fmt.Sprintf("resources[%d].%s", i, w.Key), Problem{Message: w.Message})
		}
		rep.warnIf(r.Namespaces.ExcludesAll(), fmt.Sprintf("resources[%d].namespaces.exclude", i),
			Problem{Message: "excludes every namespace: only objects without a namespace are selected",
				Found: strings.Join(r.Namespaces.Exclude, ", "), Expected: "some namespaces"})
	}
}

// warnShadowedSelections warns of objects that rule i leaves out and that a later wildcard seems to select: a resource
// belongs to the first rule that selects it, so they are not emitted.
func warnShadowedSelections(rep *reporter, rules []Resource, i int) {
	if !rules[i].IsNarrowed() {
		return
	}
	for j, name := range rules[i].Select {
		for k, later := range rules[i+1:] {
			if at, taken := later.SelectsAll(name); taken && selection.IsWildcard(later.Select[at]) {
				rep.addWarning(fmt.Sprintf("resources[%d].select[%d]", i, j), Problem{
					Message: fmt.Sprintf("objects of %q that this rule leaves out are not emitted: resources[%d].select[%d], %q, "+
						"does not select them, because a resource belongs to the first rule that selects it", name, i+1+k, at, later.Select[at]),
					Expected: fmt.Sprintf("%q in the exclude of resources[%d] if that is intended", name, i+1+k),
				})
				break
			}
		}
	}
}

// warnUnreachedVersions warns of names that select nothing because an earlier rule names the resource in some version.
func warnUnreachedVersions(rep *reporter, rules []Resource, i int) {
	for j, name := range rules[i].Select {
		group, resource, literal := selection.LiteralName(name)
		owner, owned := selection.Owners(SelectionRules(rules))(event.Resource{Group: group, Resource: resource})
		if !literal || !owned || owner >= i {
			continue
		}
		if _, reported := rules[owner].SelectsAll(name); !reported {
			rep.addWarning(fmt.Sprintf("resources[%d].select[%d]", i, j), Problem{
				Message: fmt.Sprintf("%q is never reached: resources[%d] selects the resource, and waits for it while no version that "+
					"it names is served", name, owner), Found: strconv.Quote(name),
				Expected: fmt.Sprintf("another version as a second choice in the select of resources[%d]", owner)})
		}
	}
}

const (
	minRedactionKeyBytes = 16 // a shorter key can be found by trying
	minDistinctKeyBytes  = 5  // 16 random bytes have fewer distinct ones in about one of 10^12 cases
)

func validateRedaction(rep *reporter, r Redaction) {
	expected := fmt.Sprintf("at least %d random bytes, such as {file: /etc/kubecdc/redaction.key}", minRedactionKeyBytes)
	distinct := map[byte]bool{}
	for i := range len(r.Key) {
		distinct[r.Key[i]] = true
	}
	switch {
	case r.Key == "":
	case len(r.Key) < minRedactionKeyBytes:
		rep.addProblem("redaction.key", Problem{Message: "too short", Expected: expected})
	case strings.TrimSpace(r.Key) == "":
		rep.addProblem("redaction.key", Problem{Message: "holds only blanks", Expected: expected})
	case len(distinct) < minDistinctKeyBytes:
		rep.addProblem("redaction.key", Problem{Message: "easily guessed: it repeats a few characters", Expected: expected})
	case isGuessable(r.Key):
		rep.addProblem("redaction.key", Problem{Message: "easily guessed: it is a placeholder, a sequence or a repeated word",
			Expected: expected})
	}
}

// guessableWordPattern matches the words of which keys in examples consist.
var guessableWordPattern = regexp.MustCompile(`(?i)change[-_ ]?(me|it|this)|todo|secret|passw(or)?d|example|redact(ion|ed)?|replace[-_ ]?me|` +
	`kubecdc|placeholder|default|random|test|hmac|key|bytes|admin|qwerty|[^a-z0-9]`)

// isGuessable reports whether a key is a short word again and again, consists of the words of examples, or counts up.
func isGuessable(key string) bool {
	for period := 1; period <= len(key)/2; period++ {
		if strings.HasPrefix(key, key[period:]) {
			return true
		}
	}
	if rest := guessableWordPattern.ReplaceAllString(key, ""); len(rest) < minDistinctKeyBytes && isPrintable(key) {
		return true
	}
	steps := 0
	for i := 1; i < len(key); i++ {
		if d := int(key[i]) - int(key[i-1]); d >= -1 && d <= 1 {
			steps++
		}
	}
	return steps*4 >= len(key)*3
}

// isPrintable reports whether text consists of printable ASCII.
func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// warnUnreachedRedaction warns of a wildcard rule whose redactPaths do not apply to what earlier rules select: a resource
// belongs to the first rule that selects it.
func warnUnreachedRedaction(rep *reporter, rules []Resource, i int) {
	for p, text := range rules[i].RedactPaths {
		for j, earlier := range rules[:i] {
			if slices.Contains(earlier.RedactPaths, text) {
				continue
			}
			at := slices.IndexFunc(earlier.Select, func(name string) bool {
				k, reached := rules[i].SelectsAll(name)
				return reached && selection.IsWildcard(rules[i].Select[k])
			})
			if at < 0 {
				continue
			}
			rep.addWarning(fmt.Sprintf("resources[%d].redactPaths[%d]", i, p), Problem{
				Message: fmt.Sprintf("does not apply to %q: resources[%d] selects it first, and lacks this path", earlier.Select[at], j),
				Found:   strconv.Quote(text),
				Expected: fmt.Sprintf("the path in resources[%d].redactPaths too, or %q in the exclude of this rule if its values are no secrets",
					j, earlier.Select[at]),
			})
		}
	}
}
