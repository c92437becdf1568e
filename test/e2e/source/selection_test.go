package source

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
)

// rulePick is a rule in the model of the rules, which implements docs/configuration.md independently.
type rulePick struct {
	plural, version  string // plural: "*" for the whole group; version: "" for the preferred one
	excluded         string // plural, "" for none
	include, exclude []string
	labels, field    string
	omitted          string // name of the objects that the filter leaves out; "" without a filter
	shape            rule   // further keys, which select nothing
}

// toRule returns the rule as in the configuration.
func (p rulePick) toRule(group string) rule {
	name := p.plural + "."
	if p.version != "" {
		name += p.version + "."
	}
	r := rule{"select": []string{name + group}}
	if p.excluded != "" {
		r["exclude"] = []string{p.excluded + "." + group}
	}
	namespaces := rule{}
	if len(p.include) > 0 {
		namespaces["include"] = p.include
	}
	if len(p.exclude) > 0 {
		namespaces["exclude"] = p.exclude
	}
	if len(namespaces) > 0 {
		r["namespaces"] = namespaces
	}
	if p.labels != "" {
		r["labelSelector"] = p.labels
	}
	if p.field != "" {
		r["fieldSelector"] = p.field
	}
	if p.omitted != "" {
		r["filter"] = fmt.Sprintf("object.metadata.name != %q", p.omitted)
	}
	maps.Copy(r, p.shape)
	return r
}

func (p rulePick) selects(plural string) bool {
	return (p.plural == "*" || p.plural == plural) && p.excluded != plural
}

// takesObject reports whether the rule selects an object of a resource that it owns.
func (p rulePick) takesObject(o bus.Object, of map[string]string) bool {
	matches := func(globs []string) bool {
		return slices.ContainsFunc(globs, func(glob string) bool {
			yes, err := path.Match(glob, o.Namespace)
			return yes && err == nil
		})
	}
	if o.Name == p.omitted || o.Namespace != "" && (len(p.include) > 0 && !matches(p.include) || matches(p.exclude)) {
		return false
	}
	byLabel, err := labels.Parse(p.labels)
	if err != nil {
		panic(err)
	}
	return byLabel.Matches(labels.Set(of)) && fields.ParseSelectorOrDie(p.field).Matches(fields.Set{"metadata.name": o.Name})
}

// rulePicks are rules in their order.
type rulePicks []rulePick

// takesObject reports whether an object with these labels is selected: the first rule that selects its resource owns it.
func (all rulePicks) takesObject(o bus.Object, of map[string]string) bool {
	i := slices.IndexFunc(all, func(p rulePick) bool { return p.selects(o.Resource) })
	return i >= 0 && all[i].takesObject(o, of)
}

// toRules returns the rules as in the configuration, and one rule that selects nothing of the group.
func (all rulePicks) toRules(group string) []rule {
	rules := []rule{{"select": []string{"namespaces"}, "fieldSelector": "metadata.name=default"}}
	for _, p := range all {
		rules = append(rules, p.toRule(group))
	}
	return rules
}

func (all rulePicks) String() string {
	var lines []string
	for _, p := range all {
		lines = append(lines, fmt.Sprintf("%v", p.toRule("G")))
	}
	return strings.Join(lines, "; ")
}

// editRandomly returns an edit of the rules: none, another order, or another rule for one resource or for all. The wildcard
// rule stays last, because rules after it would select nothing.
func (all rulePicks) editRandomly(rnd *rand.Rand) rulePicks {
	next := slices.Clone(all)
	switch rnd.IntN(6) {
	case 0:
		return next
	case 1:
		rnd.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
		return next.wildcardLast()
	}
	for range 1 + rnd.IntN(2) {
		plural := append(slices.Sorted(maps.Keys(fruits)), "*")[rnd.IntN(len(fruits)+1)]
		next = slices.DeleteFunc(next, func(p rulePick) bool { return p.plural == plural })
		if rnd.IntN(5) > 0 {
			next = slices.Insert(next, rnd.IntN(len(next)+1), drawPick(rnd, plural))
		}
	}
	return next.wildcardLast()
}

func (all rulePicks) wildcardLast() rulePicks {
	i := slices.IndexFunc(all, func(p rulePick) bool { return p.plural == "*" })
	if i < 0 {
		return all
	}
	wildcard := all[i]
	return append(slices.Delete(all, i, i+1), wildcard)
}

// drawPick draws a rule for a resource, or for all.
func drawPick(rnd *rand.Rand, plural string) rulePick {
	p := rulePick{plural: plural}
	if plural == "*" {
		p.excluded = oneOf(rnd, "", slices.Sorted(maps.Keys(fruits))[rnd.IntN(len(fruits))])
	} else {
		p.version = oneOf(rnd, "", "", "", "v1", "v2")
	}
	p.include = oneOf(rnd, nil, nil, []string{"fruit-a"}, []string{"fruit-b", "fruit-c"}, []string{"fruit-[ab]"}, []string{"*-c", "fruit-a"})
	if len(p.include) == 0 || strings.ContainsAny(p.include[0], "*[") {
		p.exclude = oneOf(rnd, nil, nil, nil, []string{"fruit-b"}, []string{"*-a"})
	}
	p.labels = oneOf(rnd, "", "", "", "color=red", "color in (red,blue)", "!ripe", "color!=red,ripe")
	p.field = oneOf(rnd, "", "", "", "", "metadata.name=o1", "metadata.name!=o0")
	p.omitted = oneOf(rnd, "", "", "", "o1", "o2")
	p.shape = drawShape(rnd)
	return p
}

// drawShape draws how the changes of a rule are read and shaped.
func drawShape(rnd *rand.Rand) rule {
	return oneOf(rnd, nil, nil, rule{"changed": "paths"}, rule{"before": "full", "changed": "values"}, rule{"before": "full"},
		rule{"fields": rule{"drop": []string{"spec"}}}, rule{"redactPaths": []string{"spec.size"}},
		rule{"redactPaths": []string{"spec.size"}, "before": "full"}, rule{"capture": "metadata"},
		rule{"capture": "metadata", "before": "full", "changed": "values"})
}

func oneOf[T any](rnd *rand.Rand, all ...T) T { return all[rnd.IntN(len(all))] }
