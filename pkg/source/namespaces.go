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

// namespaces asks whether the namespaces that rules name exist. The API server watches one that does not without a word, so
// that a misspelt name looks like one in which nothing happens. Nothing depends on the answers: a namespace that is created
// later is being watched already. Safe for concurrent use.
type namespaces struct {
	client  *apiserver.Client
	every   time.Duration // between questions about one that does not exist
	all     *condition.Set
	changed chan struct{} // of capacity 1: other names are followed

	mu    sync.Mutex
	named map[string]*namespace
}

type namespace struct {
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
	found   = condition.State{Name: "found", Message: "the namespace exists now"}
	missing = condition.State{
		Name: "missing", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "a selected namespace does not exist; it is watched from the moment that it does",
	}
	undisclosed = condition.State{
		Name: "unknown", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "it cannot be known whether a selected namespace exists",
	}
)

// namespaceEvery is how often it is asked whether a namespace still exists, and whether the right to ask is there.
const namespaceEvery = time.Minute

func newNamespaces(cfg *Config) *namespaces {
	return &namespaces{
		client: cfg.Client, every: cfg.Interval, all: condition.NewSet(cfg.Log, "namespaces"),
		changed: make(chan struct{}, 1), named: map[string]*namespace{},
	}
}

// follow says which names are asked about from now on.
func (n *namespaces) follow(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.named {
		if !slices.Contains(names, name) {
			n.all.Remove(name)
			delete(n.named, name)
		}
	}
	for _, name := range names {
		if n.named[name] == nil {
			n.named[name] = &namespace{condition: n.all.Add(name, found)}
			nudge(n.changed)
		}
	}
}

// run asks until ctx ends.
func (n *namespaces) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer n.all.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.changed:
		case <-timer.C:
		}
		if next := n.askAll(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// askAll asks about those that are due, and returns when the next one is; zero where nothing is followed.
func (n *namespaces) askAll(ctx context.Context) (next time.Time) {
	n.mu.Lock()
	named := maps.Clone(n.named)
	n.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(named)) {
		one := named[name]
		if !one.due.After(time.Now()) {
			one.due = time.Now().Add(n.ask(ctx, name, one.condition))
		}
		if next.IsZero() || one.due.Before(next) {
			next = one.due
		}
	}
	return next
}

// ask asks once and returns after how long to ask again. An API server that does not answer changes nothing.
func (n *namespaces) ask(ctx context.Context, name string, c *condition.Condition) time.Duration {
	exists, err := n.client.HasNamespace(ctx, name)
	switch {
	case err != nil && apiserver.Classify(err) == apiserver.Forbidden:
		c.Become(undisclosed, apiserver.Reason(err), "`exporter rbac` prints the right: get on this namespace alone")
		return namespaceEvery
	case err != nil:
		return n.every
	case !exists:
		c.Become(missing, "", "create it, or correct the name")
		return n.every
	}
	c.Become(found, "", "")
	return namespaceEvery
}

// status describes all, by name.
func (n *namespaces) status() []NamespaceStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []NamespaceStatus
	for _, name := range slices.Sorted(maps.Keys(n.named)) {
		now := n.named[name].condition.Status()
		all = append(all, NamespaceStatus{Name: name, Missing: now.State.Name == missing.Name, Unknown: now.Reason})
	}
	return all
}

// Namespaces describes the namespaces that rules name, globs apart, in order.
func (s *Source) Namespaces() []NamespaceStatus { return s.namespaces.status() }
