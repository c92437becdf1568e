package filter

import (
	"errors"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Facts is an expression over the facts of a change, for those who have no object: it may ask for change alone. It is
// immutable and safe for concurrent use.
type Facts struct{ filter *Filter }

// NewFacts reads an expression; "" takes everything. Its errors are for people.
func NewFacts(expression string) (*Facts, error) {
	if expression == "" {
		return &Facts{}, nil
	}
	f, err := Compile(expression, false)
	if err != nil {
		return nil, err
	}
	if f.asks {
		return nil, errors.New("asks for object, and there are only facts here: use change.type, change.name and the like")
	}
	return &Facts{f}, nil
}

// Takes says whether the expression is true. After an error nothing is known.
func (f *Facts) Takes(c *event.Change) (bool, error) {
	if f.filter == nil {
		return true, nil
	}
	return f.filter.Takes(c, nil)
}
