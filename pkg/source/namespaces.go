package source

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// namespaceChecker checks whether the namespaces that rules name exist, and whether one matches each glob. The API server
// accepts a watch of a missing namespace, so a misspelled name looks like a namespace without changes. The result is only
// reported: a namespace that is created later is already being watched. Safe for concurrent use.
type namespaceChecker struct {
	client     *apiserver.Client
	interval   time.Duration // between checks of a missing namespace
	conditions *condition.Set
	changed    chan struct{} // capacity 1: names were added

	mu     sync.Mutex
	byName map[string]*checkedNamespace // by name or glob
}

type checkedNamespace struct {
	condition *condition.Condition
	glob      *selection.NamespaceGlob // nil for a name
	due       time.Time                // time of the next check; owned by run
}

// namespaceRecheck is the interval for checking an existing namespace, or a denied right, again.
const namespaceRecheck = time.Minute

func newNamespaceChecker(cfg *Config) *namespaceChecker {
	return &namespaceChecker{
		client: cfg.Client, interval: cfg.Interval, conditions: condition.NewSet(cfg.Log, "namespace", "namespaces"),
		changed: make(chan struct{}, 1), byName: map[string]*checkedNamespace{},
	}
}

func (n *namespaceChecker) setChecked(names []string, globs []selection.NamespaceGlob) {
	wanted := map[string]*selection.NamespaceGlob{}
	for _, name := range names {
		wanted[name] = nil
	}
	for i := range globs {
		wanted[globs[i].Glob] = &globs[i]
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.byName {
		if _, still := wanted[name]; !still {
			n.conditions.Remove(name)
			delete(n.byName, name)
		}
	}
	for name, glob := range wanted {
		if n.byName[name] == nil {
			n.byName[name] = &checkedNamespace{condition: n.conditions.Add(name, condition.Problem{}), glob: glob}
			ratelimit.Wake(n.changed)
		}
	}
}

// run checks until ctx ends.
func (n *namespaceChecker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer n.conditions.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.changed:
		case <-timer.C:
		}
		if next := n.checkDue(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// checkDue checks the namespaces that are due and returns the time of the next check; zero if there are no names.
func (n *namespaceChecker) checkDue(ctx context.Context) (next time.Time) {
	n.mu.Lock()
	named := maps.Clone(n.byName)
	n.mu.Unlock()
	list := sync.OnceValues(func() ([]string, error) { return n.client.NamespaceNames(ctx) }) // one for all globs that are due
	for _, name := range slices.Sorted(maps.Keys(named)) {
		one := named[name]
		switch {
		case one.due.After(time.Now()):
		case one.glob != nil:
			n.checkGlob(*one.glob, list, one.condition)
			one.due = time.Now().Add(namespaceRecheck)
		default:
			one.due = time.Now().Add(n.checkNamespace(ctx, name, one.condition))
		}
		if next.IsZero() || one.due.Before(next) {
			next = one.due
		}
	}
	return next
}

// checkNamespace checks once and returns the time until the next check. A failed request leaves the condition as it is.
func (n *namespaceChecker) checkNamespace(ctx context.Context, name string, c *condition.Condition) time.Duration {
	exists, err := n.client.HasNamespace(ctx, name)
	switch {
	case err != nil && apiserver.Classify(err) == apiserver.Forbidden:
		c.Update(condition.Problem{Code: condition.NamespaceUnknown, Cause: apiserver.Reason(err)})
		return namespaceRecheck
	case err != nil:
		return n.interval
	case !exists:
		c.Update(condition.Problem{Code: condition.NamespaceMissing})
		return n.interval
	}
	c.Clear()
	return namespaceRecheck
}

// checkGlob checks once whether a namespace matches a glob. A failed request leaves the condition as it is.
func (n *namespaceChecker) checkGlob(glob selection.NamespaceGlob, list func() ([]string, error), c *condition.Condition) {
	names, err := list()
	switch {
	case err != nil && apiserver.Classify(err) == apiserver.Forbidden:
		c.Update(condition.Problem{Code: condition.NamespaceUnknown, Cause: apiserver.Reason(err),
			Remedy: "allow list on namespaces; exporter rbac prints the right"})
	case err != nil:
	case !glob.HasMatch(names):
		c.Update(condition.Problem{Code: condition.NamespaceMissing, Cause: "no namespace matches this pattern of namespaces.include"})
	default:
		c.Clear()
	}
}
