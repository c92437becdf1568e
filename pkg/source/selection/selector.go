package selection

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// checkLabels reads a label selector. One that no object can match is an error: the API server takes it and sends nothing.
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

// areContradictory says that no value of one label, nor its absence, satisfies both requirements.
func areContradictory(a, b labels.Requirement) bool {
	candidates := append(a.Values().UnsortedList(), b.Values().UnsortedList()...)
	bound := false
	for _, r := range []labels.Requirement{a, b} {
		switch r.Operator() {
		case selection.GreaterThan, selection.LessThan:
			return false // too rare to be worth its arithmetic
		case selection.In, selection.Equals, selection.DoubleEquals, selection.DoesNotExist:
			bound = true
		}
	}
	if !bound { // any other value does
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

// checkFields is checkLabels for a field selector. chosen says which namespaces the rule takes; nil for all.
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
			return fmt.Errorf("no object can match: %s cannot be %q and not be it", r.Field, value)
		}
	}
	if namespace, given := exact["metadata.namespace"]; given && chosen != nil && !chosen(namespace) {
		return fmt.Errorf("no object can match: namespace %q is not among those that namespaces takes", namespace)
	}
	return nil
}
