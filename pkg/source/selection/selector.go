package selection

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
)

// checkLabels validates a label selector. A selector that no object can match is an error: the API server accepts it and
// sends nothing.
func checkLabels(text string) error {
	s, err := labels.Parse(text)
	if err != nil {
		return err
	}
	requirements, _ := s.Requirements()
	for i, r := range requirements {
		together := slices.DeleteFunc(slices.Clone(requirements[:i+1]), func(other labels.Requirement) bool { return other.Key() != r.Key() })
		if isSatisfiable(together) {
			continue
		}
		for j := len(together) - 1; j >= 0; j-- { // what remains is needed for the contradiction
			if fewer := slices.Delete(slices.Clone(together), j, j+1); !isSatisfiable(fewer) {
				together = fewer
			}
		}
		return unsatisfiableError(together)
	}
	return nil
}

func unsatisfiableError(together []labels.Requirement) error {
	if len(together) == 1 {
		return fmt.Errorf("no object can match: found %q, expected a bound that some value satisfies", together[0].String())
	}
	var texts []string
	for _, r := range together {
		texts = append(texts, strconv.Quote(r.String()))
	}
	return fmt.Errorf("no object can match: found %s, expected requirements that do not contradict each other", strings.Join(texts, " and "))
}

// isSatisfiable reports whether some value of one label, or its absence, satisfies all requirements, which are about it.
func isSatisfiable(requirements []labels.Requirement) bool {
	matches := func(set labels.Set) bool {
		return !slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return !r.Matches(set) })
	}
	return matches(labels.Set{}) || slices.ContainsFunc(candidateValues(requirements), func(value string) bool {
		return matches(labels.Set{requirements[0].Key(): value})
	})
}

// candidateValues returns values of one label of which one satisfies the requirements, if any value does: those that they
// name, the numbers next to each bound, and a text that they do not name.
func candidateValues(requirements []labels.Requirement) []string {
	var values []string
	for _, r := range requirements {
		values = append(values, r.Values().UnsortedList()...)
	}
	unnamed := func(text string) string { // 7, 07 and 007 are one number and three values
		for slices.Contains(values, text) {
			text = "0" + text
		}
		return text
	}
	candidates := append(slices.Clone(values), unnamed("x"))
	for _, r := range requirements {
		for _, text := range r.Values().UnsortedList() {
			switch bound, err := strconv.ParseInt(text, 10, 64); {
			case err != nil:
			case r.Operator() == selection.GreaterThan && bound < math.MaxInt64:
				candidates = append(candidates, unnamed(strconv.FormatInt(bound+1, 10)))
			case r.Operator() == selection.LessThan && bound > 0: // values of labels have no sign
				candidates = append(candidates, unnamed(strconv.FormatInt(bound-1, 10)))
			}
		}
	}
	return candidates
}

// checkFields is checkLabels for the field selector of a rule.
func (r Rule) checkFields() error {
	s, err := fields.ParseSelector(r.FieldSelector)
	if err != nil {
		return err
	}
	exact := map[string]string{}
	for _, one := range s.Requirements() {
		if one.Operator == selection.NotEquals {
			continue
		}
		if value, given := exact[one.Field]; given && value != one.Value {
			return fmt.Errorf("no object can match: found %q and %q, expected one value of %s", value, one.Value, one.Field)
		}
		exact[one.Field] = one.Value
	}
	for _, one := range s.Requirements() {
		if value, given := exact[one.Field]; given && one.Operator == selection.NotEquals && value == one.Value {
			return fmt.Errorf("no object can match: found %s both equal and unequal to %q, expected one of them", one.Field, value)
		}
	}
	if name, given := exact[metav1.ObjectNameField]; given && r.selectsOnly(func(resource string) bool { return !MayBeNamed(resource, name) }) {
		return fmt.Errorf("no object can match: found %q, expected the name of an object", name)
	}
	return r.checkNamespaceField(s)
}

// checkNamespaceField reports a field selector that leaves no namespace of those that the rule selects.
func (r Rule) checkNamespaceField(s fields.Selector) error {
	namespace, given := s.RequiresExactMatch(namespaceField)
	selects := r.Namespaces.Filter()
	switch {
	case given && namespace == "" && r.selectsOnly(IsNamespaced):
		return errors.New(`no object can match: found "", expected a namespace, as every selected object has one`)
	case given && namespace != "" && r.selectsOnly(IsClusterScoped):
		return fmt.Errorf("no object can match: found namespace %q, expected none, as no selected object has one", namespace)
	case given && namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0:
		return fmt.Errorf("no object can match: found %q, expected the name of a namespace", namespace)
	case given && selects != nil && !selects(namespace):
		return fmt.Errorf("no object can match: found namespace %q, expected one that namespaces selects", namespace)
	}
	watched := r.Namespaces.Names()
	isLeftOut := func(name string) bool {
		return slices.ContainsFunc(s.Requirements(), func(one fields.Requirement) bool {
			return one.Field == namespaceField && one.Operator == selection.NotEquals && one.Value == name
		})
	}
	if len(watched) > 0 && r.selectsOnly(IsNamespaced) && !slices.ContainsFunc(watched, func(name string) bool { return !isLeftOut(name) }) {
		return fmt.Errorf("no object can match: found every selected namespace left out (%s), expected one to remain", strings.Join(watched, ", "))
	}
	return nil
}

// selectsOnly reports whether a statement holds for everything that the rule names.
func (r Rule) selectsOnly(is func(name string) bool) bool {
	return len(r.Select) > 0 && !slices.ContainsFunc(r.Select, func(name string) bool { return !is(name) })
}
