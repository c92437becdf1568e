package tap

import (
	"container/list"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/screen/field"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// queued bounds the changes between the source and the terminal.
const queued = 64

// readyPoll is how often it is asked whether everything is being watched.
const readyPoll = 100 * time.Millisecond

// ClusterOptions select what is read from a cluster.
type ClusterOptions struct {
	Client *apiserver.Client
	Rule   selection.Rule
	Filter string    // CEL, see docs/shaping.md; "" takes all
	Notes  io.Writer // gets what is not a change: what is watched, and what goes wrong
}

// Cluster shows what changes from now on until ctx ends, which is no error, or the printer has enough. Values of Secrets are
// masked before anything is kept or shown.
func Cluster(ctx context.Context, o ClusterOptions, p *Printer) error {
	log := slog.New(&notes{mu: &sync.Mutex{}, w: o.Notes})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rule, err := resolveNames(ctx, o.Client, o.Rule)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	bodies := newStates(maxStates)
	shaper, err := shape.New([]shape.Policy{{Filter: o.Filter, Before: "full"}}, shape.Options{JournalSecret: []byte(rand.Text()), Bodies: bodies})
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	changes := make(chan *event.Change, queued)
	t := &changeCollector{bodies: bodies, changes: changes, log: log}
	src, err := source.New(source.Config{
		Client: o.Client, Cluster: clusterName(ctx, o.Client), Rules: []selection.Rule{rule},
		Load: func(event.Resource, func(event.Known)) (event.StoredResource, error) {
			return event.StoredResource{}, nil
		},
		StoredResources: func() ([]string, error) { return nil, nil },
		SetScopes:       func(context.Context, event.Resource, []event.StoredScope) error { return nil },
		Append:          t.appendObservation,
		Shape:           shaper.WrapAppend,
		DropResource:    bodies.DropBodies,
		Log:             log,
	})
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	if o.Filter != "" {
		t.filter = func() string { return shaper.Stats()[0].Failure }
	}
	go printWhenReady(ctx, src, o.Client.Host(), o.Notes)
	return p.printWhile(ctx, changes, src.Run)
}

// resolveNames replaces names that kubectl knows, as "po", by those of the resources. Where the cluster cannot be asked, the
// rule stays: the source asks again, and says why it cannot.
func resolveNames(ctx context.Context, c *apiserver.Client, rule selection.Rule) (selection.Rule, error) {
	found, err := c.Explain(ctx, []selection.Rule{rule})
	if err != nil {
		return rule, nil //nolint:nilerr // see above
	}
	rule.Select = slices.Clone(rule.Select)
	for _, u := range found.Unserved {
		switch {
		case len(u.Aliased) == 1, len(u.Aliased) > 1 && !strings.ContainsRune(u.Aliased[0], '.'): // the core group is the first
			rule.Select[u.Select] = u.Aliased[0]
		case len(u.Aliased) > 1:
			return rule, fmt.Errorf("%q is a name of several resources: expected one of %s", u.Name, strings.Join(u.Aliased, ", "))
		}
	}
	return rule, nil
}

// clusterName is the name that changes carry: as without cluster.name in a configuration, where that may be read.
func clusterName(ctx context.Context, c *apiserver.Client) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if uid, err := c.ClusterUID(ctx); err == nil {
		return uid
	}
	return c.Host()
}

// changeCollector takes the observations of all scopes.
type changeCollector struct {
	bodies  *states
	changes chan<- *event.Change
	log     *slog.Logger
	filter  func() string // why the filter failed last; nil without a filter
	failed  sync.Once     // logs the failure of the filter
}

// appendObservation keeps states and passes on what is news: what the first lists name is not. It waits while the terminal
// does.
func (t *changeCollector) appendObservation(ctx context.Context, o event.Observation) error {
	t.bodies.keepBodies(o)
	t.checkFilter()
	for _, c := range o.Changes {
		if c.Type == event.Snapshot || c.Type.FramesSnapshot() {
			continue
		}
		select {
		case t.changes <- c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// checkFilter logs once that the filter fails on objects: such objects are shown unfiltered.
func (t *changeCollector) checkFilter() {
	if t.filter == nil {
		return
	}
	if why := t.filter(); why != "" {
		t.failed.Do(func() { t.log.Warn("filter evaluation failed; such changes are shown unfiltered", "reason", why) })
	}
}

// printWhenReady prints one line when everything is being watched: from then on silence means that nothing changes.
func printWhenReady(ctx context.Context, src *source.Source, host string, notes io.Writer) {
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
		if src.Ready() {
			live, objects := 0, 0
			for _, s := range src.Status() {
				if s.State == source.Live {
					live, objects = live+1, objects+s.Known
				}
			}
			fmt.Fprintf(notes, "watching %s with %s at %s; ^C ends\n", formatCount(live, "resource"), formatCount(objects, "object"), field.EscapeUnprintable(host))
			return
		}
	}
}

func formatCount(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// maxStates bounds the states of objects that are kept to compare with, in bytes: some 50,000 objects. Of more, those that
// changed last are kept; the first change of another is shown without what it changed.
const maxStates = 64 << 20

// states keeps the last states of objects, compressed, those that were used last. Safe for concurrent use.
type states struct {
	most int

	mu    sync.Mutex
	size  int
	byKey map[stateKey]*list.Element
	order *list.List // of *state; the front was used last
}

var _ shape.Bodies = (*states)(nil)

type stateKey struct{ resource, key string }

type state struct {
	of   stateKey
	body event.Body // Raw is compressed
}

func (s *state) memoryBytes() int {
	const overhead = 320
	return overhead + len(s.body.Raw)
}

func newStates(most int) *states {
	return &states{most: most, byKey: map[stateKey]*list.Element{}, order: list.New()}
}

// keepBodies stores the states that an observation holds.
func (s *states) keepBodies(o event.Observation) {
	resource := o.Resource.String()
	for _, key := range o.RemovedKeys {
		s.dropOldest(stateKey{resource, key})
	}
	for _, b := range o.Bodies {
		b.Raw = s2.Encode(nil, b.Raw)
		s.putState(&state{stateKey{resource, b.Key}, b})
	}
}

func (s *states) putState(n *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeState(s.byKey[n.of])
	s.byKey[n.of] = s.order.PushFront(n)
	for s.size += n.memoryBytes(); s.size > s.most && s.order.Len() > 1; {
		s.removeState(s.order.Back())
	}
}

func (s *states) dropOldest(of stateKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeState(s.byKey[of])
}

// removeState removes an element if there is one. The caller holds the lock.
func (s *states) removeState(e *list.Element) {
	if e == nil {
		return
	}
	old := s.order.Remove(e).(*state)
	delete(s.byKey, old.of)
	s.size -= old.memoryBytes()
}

// Body implements [shape.Bodies].
func (s *states) Body(resource, key string) (event.Body, bool, error) {
	s.mu.Lock()
	e := s.byKey[stateKey{resource, key}]
	if e == nil {
		s.mu.Unlock()
		return event.Body{}, false, nil
	}
	s.order.MoveToFront(e)
	b := e.Value.(*state).body // what its Raw refers to never changes
	s.mu.Unlock()
	var err error
	b.Raw, err = s2.Decode(nil, b.Raw)
	return b, err == nil, err
}

// BodyResources implements [shape.Bodies]. Every resource keeps bodies here, so that none has to be forgotten.
func (s *states) BodyResources() []string { return nil }

// DropBodies implements [shape.Bodies].
func (s *states) DropBodies(_ context.Context, resource string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, e := range s.byKey {
		if of.resource == resource {
			s.removeState(e)
		}
	}
	return nil
}
