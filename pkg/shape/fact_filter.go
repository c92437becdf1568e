package shape

import (
	"errors"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// FactFilter is an expression over the facts of a change, for those who have no object: it may ask for change alone. It is
// immutable and safe for concurrent use.
type FactFilter struct{ filter *filter }

// NewFactFilter reads an expression; "" takes everything. Its errors are for people.
func NewFactFilter(expression string) (*FactFilter, error) {
	if expression == "" {
		return &FactFilter{}, nil
	}
	f, err := compileFilter(expression, false)
	if err != nil {
		return nil, err
	}
	if f.asks {
		return nil, errors.New("asks for object, and there are only facts here: use change.type, change.name and the like")
	}
	return &FactFilter{f}, nil
}

// Takes says whether the expression is true. After an error nothing is known.
func (f *FactFilter) Takes(c *event.Change) (bool, error) {
	if f.filter == nil {
		return true, nil
	}
	return f.filter.takes(&view{change: c})
}
