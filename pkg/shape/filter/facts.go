package filter

import (
	"errors"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// FactsFilter is an expression that uses only change, for callers without the object. Immutable and safe for concurrent use.
type FactsFilter struct{ filter *Filter }

// NewFactsFilter compiles an expression; "" matches everything. Its errors are for display.
func NewFactsFilter(expression string) (*FactsFilter, error) {
	if expression == "" {
		return &FactsFilter{}, nil
	}
	f, err := Compile(expression, false)
	if err != nil {
		return nil, err
	}
	if f.usesObject {
		return nil, errors.New("object is not available here: use change.type, change.name and similar")
	}
	return &FactsFilter{f}, nil
}

// Matches reports whether the expression is true. The result is undefined after an error.
func (f *FactsFilter) Matches(c *event.Change) (bool, error) {
	if f.filter == nil {
		return true, nil
	}
	return f.filter.Matches(c, nil)
}
