package filter

import (
	"errors"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// FactsFilter is an expression over the facts of a change, for those who have no object: it may ask for change alone. It is
// immutable and safe for concurrent use.
type FactsFilter struct{ filter *Filter }

// NewFactsFilter reads an expression; "" takes everything. Its errors are for people.
func NewFactsFilter(expression string) (*FactsFilter, error) {
	if expression == "" {
		return &FactsFilter{}, nil
	}
	f, err := Compile(expression, false)
	if err != nil {
		return nil, err
	}
	if f.usesObject {
		return nil, errors.New("asks for object, and there are only facts here: use change.type, change.name and the like")
	}
	return &FactsFilter{f}, nil
}

// Matches says whether the expression is true. After an error nothing is known.
func (f *FactsFilter) Matches(c *event.Change) (bool, error) {
	if f.filter == nil {
		return true, nil
	}
	return f.filter.Matches(c, nil)
}
