package shape

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/shape/filter"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// What Policy.Changed asks for.
const (
	changedNone  = "none"
	changedPaths = "paths"
	changedMerge = "mergePatch"
	changedPatch = "jsonPatch"
)

// rule is a [Policy] that is ready to be used.
type rule struct {
	redactor *redactor
	only     *path.Tree
	ignore   *path.Tree
	filter   *filter.Filter
	fields   *fields
	changed  string
	before   bool // updates carry the state before them
	keeps    bool // bodies are needed
	idle     bool // looks into no object

	counters counters
}

// bookkeeping is what every write changes.
var bookkeeping = []path.Path{
	path.Of("metadata", "resourceVersion"),
	path.Of("metadata", "generation"),
}

func compile(p Policy, options Options) (*rule, error) {
	r := &rule{changed: p.Changed, before: p.Before == beforeFull || options.Before}
	redact, only, ignore, keep, drop, err := p.paths()
	if err != nil {
		return nil, err
	}
	if r.redactor, err = newRedactor(p, redact, options.Key); err != nil {
		return nil, fmt.Errorf("redactPaths: %w", err)
	}
	if len(only) > 0 {
		if r.only, err = path.NewTree(only); err != nil {
			return nil, fmt.Errorf("onlyIfChanged: %w", err)
		}
	}
	if len(ignore) > 0 {
		if r.ignore, err = path.NewTree(append(ignore, bookkeeping...)); err != nil {
			return nil, fmt.Errorf("ignoreChanges: %w", err)
		}
	}
	if r.fields, err = newFields(keep, drop); err != nil {
		return nil, fmt.Errorf("fields: %w", err)
	}
	if p.Filter != "" {
		if r.filter, err = filter.Compile(p.Filter, true); err != nil {
			return nil, fmt.Errorf("filter: %w", err)
		}
	}
	describes := r.changed != "" && r.changed != changedNone
	r.keeps = r.before || describes || r.only != nil || r.ignore != nil || r.filter != nil && r.filter.AsksOld()
	r.idle = !r.keeps && r.filter == nil && r.fields == nil && r.redactor == nil
	return r, nil
}

// counters count what a rule did with its changes.
type counters struct {
	filtered, unchanged, withheld atomic.Uint64
	failures                      failures
}

// failures are the evaluations of a filter that failed.
type failures struct {
	mu    sync.Mutex
	count uint64
	last  string
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	f.last = err.Error()
}

func (f *failures) get() (count uint64, last string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count, f.last
}

// Stats counts, for one rule, since the process started.
type Stats struct {
	Filtered  uint64 // changes that filter did not take
	Unchanged uint64 // updates that touched nothing onlyIfChanged or ignoreChanges ask for
	Withheld  uint64 // changes that cannot be redacted
	Failed    uint64 // evaluations of filter that failed; their changes were emitted
	Failure   string // why the last of them did; "" for none
}

// Stats returns the counts of all rules, in their order.
func (s *Shaper) Stats() []Stats {
	all := make([]Stats, len(s.rules))
	for i, r := range s.rules {
		c := &r.counters
		failed, failure := c.failures.get()
		all[i] = Stats{c.filtered.Load(), c.unchanged.Load(), c.withheld.Load(), failed, failure}
	}
	return all
}
