package shape

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/shape/filter"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// Values of Policy.Changed.
const (
	changedNone  = "none"
	changedPaths = "paths"
	changedMerge = "mergePatch"
	changedPatch = "jsonPatch"
)

// rule is a compiled [Policy].
type rule struct {
	redactor        *redactor
	onlyIfChanged   *path.Tree
	ignoreChanges   *path.Tree
	filter          *filter.Filter
	fields          *fieldSelector
	changed         string
	before          bool // updates carry the state before them
	keepsBodies     bool // states of objects are stored
	passesUnchanged bool // never inspects objects

	counters counters
}

// bookkeepingPaths change with every write.
var bookkeepingPaths = []path.Path{
	path.OfNames("metadata", "resourceVersion"),
	path.OfNames("metadata", "generation"),
}

func compileRule(p Policy, options Options) (*rule, error) {
	r := &rule{changed: p.Changed, before: p.Before == beforeFull || options.AlwaysBefore}
	redact, only, ignore, keep, drop, err := p.parseAllPaths()
	if err != nil {
		return nil, err
	}
	if r.redactor, err = newRedactor(p, redact, options.Key); err != nil {
		return nil, fmt.Errorf("redactPaths: %w", err)
	}
	if len(only) > 0 {
		if r.onlyIfChanged, err = path.NewTree(only); err != nil {
			return nil, fmt.Errorf("onlyIfChanged: %w", err)
		}
	}
	if len(ignore) > 0 {
		if r.ignoreChanges, err = path.NewTree(append(ignore, bookkeepingPaths...)); err != nil {
			return nil, fmt.Errorf("ignoreChanges: %w", err)
		}
	}
	if r.fields, err = newFieldSelector(keep, drop); err != nil {
		return nil, fmt.Errorf("fields: %w", err)
	}
	if p.Filter != "" {
		if r.filter, err = filter.Compile(p.Filter, true); err != nil {
			return nil, fmt.Errorf("filter: %w", err)
		}
	}
	describes := r.changed != "" && r.changed != changedNone
	r.keepsBodies = r.before || describes || r.onlyIfChanged != nil || r.ignoreChanges != nil || r.filter != nil && r.filter.UsesOldObject()
	r.passesUnchanged = !r.keepsBodies && r.filter == nil && r.fields == nil && r.redactor == nil
	return r, nil
}

// counters count the decisions of a rule.
type counters struct {
	filtered, unchanged, withheld atomic.Uint64
	failures                      filterFailures
}

// filterFailures counts failed evaluations of a filter.
type filterFailures struct {
	mu    sync.Mutex
	count uint64
	last  string
}

func (f *filterFailures) recordFailure(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	f.last = err.Error()
}

func (f *filterFailures) lastFailure() (count uint64, last string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count, f.last
}

// Stats counts decisions of one rule since the start of the process.
type Stats struct {
	Filtered  uint64 // changes excluded by filter
	Unchanged uint64 // updates that changed nothing relevant for onlyIfChanged or ignoreChanges
	Withheld  uint64 // changes that could not be redacted
	Failed    uint64 // failed evaluations of filter; the changes were emitted
	Failure   string // the last error; "" for none
}

// Stats returns the counts of all rules, in order.
func (s *Shaper) Stats() []Stats {
	all := make([]Stats, len(s.rules))
	for i, r := range s.rules {
		c := &r.counters
		failed, failure := c.failures.lastFailure()
		all[i] = Stats{c.filtered.Load(), c.unchanged.Load(), c.withheld.Load(), failed, failure}
	}
	return all
}
