package source

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// namespaceChecker asks whether the namespaces that rules name exist. The API server watches one that does not without a word, so
// that a misspelt name looks like one in which nothing happens. Nothing depends on the answers: a namespace that is created
// later is being watched already. Safe for concurrent use.
type namespaceChecker struct {
	client     *apiserver.Client
	interval   time.Duration // between questions about one that does not exist
	conditions *condition.Set
	changed    chan struct{} // of capacity 1: other names are followed

	mu     sync.Mutex
	byName map[string]*checkedNamespace
}

type checkedNamespace struct {
	condition *condition.Condition
	due       time.Time // for the next question; owned by run once it runs
}

// NamespaceStatus says what is known of a namespace that a rule names. It is a copy.
type NamespaceStatus struct {
	Name    string
	Missing bool   // it does not exist
	Unknown string // why it is not known whether it exists, for want of a right; "" where it is, or nobody has answered yet
}

// The states of a namespace.
var (
	namespaceFound   = condition.State{Name: "found", Message: "the namespace exists now"}
	namespaceMissing = condition.State{
		Name: "missing", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "a selected namespace does not exist; it is watched from the moment that it does",
	}
	namespaceUnknown = condition.State{
		Name: "unknown", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "it cannot be known whether a selected namespace exists",
	}
)

// namespaceRecheck is how often it is asked whether a namespace still exists, and whether the right to ask is there.
const namespaceRecheck = time.Minute

func newNamespaceChecker(cfg *Config) *namespaceChecker {
	return &namespaceChecker{
		client: cfg.Client, interval: cfg.Interval, conditions: condition.NewSet(cfg.Log, "namespaces"),
		changed: make(chan struct{}, 1), byName: map[string]*checkedNamespace{},
	}
}

// setNames says which names are asked about from now on.
func (n *namespaceChecker) setNames(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.byName {
		if !slices.Contains(names, name) {
			n.conditions.Remove(name)
			delete(n.byName, name)
		}
	}
	for _, name := range names {
		if n.byName[name] == nil {
			n.byName[name] = &checkedNamespace{condition: n.conditions.Add(name, namespaceFound)}
			signal(n.changed)
		}
	}
}

// run asks until ctx ends.
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

// checkDue asks about those that are due, and returns when the next one is; zero where nothing is followed.
func (n *namespaceChecker) checkDue(ctx context.Context) (next time.Time) {
	n.mu.Lock()
	named := maps.Clone(n.byName)
	n.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(named)) {
		one := named[name]
		if !one.due.After(time.Now()) {
			one.due = time.Now().Add(n.checkNamespace(ctx, name, one.condition))
		}
		if next.IsZero() || one.due.Before(next) {
			next = one.due
		}
	}
	return next
}

// checkNamespace asks once and returns after how long to ask again. An API server that does not answer changes nothing.
func (n *namespaceChecker) checkNamespace(ctx context.Context, name string, c *condition.Condition) time.Duration {
	exists, err := n.client.HasNamespace(ctx, name)
	switch {
	case err != nil && apiserver.Classify(err) == apiserver.Forbidden:
		c.Update(namespaceUnknown, apiserver.Reason(err), "`exporter rbac` prints the right: get on this namespace alone")
		return namespaceRecheck
	case err != nil:
		return n.interval
	case !exists:
		c.Update(namespaceMissing, "", "create it, or correct the name")
		return n.interval
	}
	c.Update(namespaceFound, "", "")
	return namespaceRecheck
}

// status describes all, by name.
func (n *namespaceChecker) status() []NamespaceStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []NamespaceStatus
	for _, name := range slices.Sorted(maps.Keys(n.byName)) {
		now := n.byName[name].condition.Status()
		all = append(all, NamespaceStatus{Name: name, Missing: now.State.Name == namespaceMissing.Name, Unknown: now.Reason})
	}
	return all
}

// Namespaces describes the namespaces that rules name, globs apart, in order.
func (s *Source) Namespaces() []NamespaceStatus { return s.namespaces.status() }
