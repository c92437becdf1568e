package selection

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// checkLabels validates a label selector. A selector that no object can match is an error: the API server accepts it and
// sends nothing.
func checkLabels(text string) error {
	s, err := labels.Parse(text)
	if err != nil {
		return err
	}
	requirements, _ := s.Requirements()
	for i, a := range requirements {
		for _, b := range requirements[:i] {
			if a.Key() == b.Key() && areContradictory(a, b) {
				return fmt.Errorf("no object can match: %q and %q contradict each other", b.String(), a.String())
			}
		}
	}
	return nil
}

// areContradictory reports whether neither any value of one label nor its absence satisfies both requirements.
func areContradictory(a, b labels.Requirement) bool {
	candidates := append(a.Values().UnsortedList(), b.Values().UnsortedList()...)
	bound := false
	for _, r := range []labels.Requirement{a, b} {
		switch r.Operator() {
		case selection.GreaterThan, selection.LessThan:
			return false // too rare for arithmetic on values
		case selection.In, selection.Equals, selection.DoubleEquals, selection.DoesNotExist:
			bound = true
		}
	}
	if !bound { // some other value satisfies both
		return false
	}
	key := a.Key()
	if a.Matches(labels.Set{}) && b.Matches(labels.Set{}) {
		return false
	}
	return !slices.ContainsFunc(candidates, func(value string) bool {
		set := labels.Set{key: value}
		return a.Matches(set) && b.Matches(set)
	})
}

// checkFields is checkLabels for a field selector. chosen reports whether the rule selects a namespace; nil for all.
func checkFields(text string, chosen func(string) bool) error {
	s, err := fields.ParseSelector(text)
	if err != nil {
		return err
	}
	exact := map[string]string{}
	for _, r := range s.Requirements() {
		if r.Operator == selection.NotEquals {
			continue
		}
		if value, given := exact[r.Field]; given && value != r.Value {
			return fmt.Errorf("no object can match: %s cannot be %q and %q", r.Field, value, r.Value)
		}
		exact[r.Field] = r.Value
	}
	for _, r := range s.Requirements() {
		if value, given := exact[r.Field]; given && r.Operator == selection.NotEquals && value == r.Value {
			return fmt.Errorf("no object can match: %s cannot be both equal and unequal to %q", r.Field, value)
		}
	}
	if namespace, given := exact[namespaceField]; given && chosen != nil && !chosen(namespace) {
		return fmt.Errorf("no object can match: namespace %q is not selected by namespaces", namespace)
	}
	return nil
}
