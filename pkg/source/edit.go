package source

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Edit says what a running Source selects from now on.
type Edit struct {
	// Rules must be valid.
	Rules []selection.Rule
	// Load and Shape are those of Config, for these rules.
	Load  func(resource string, known func(event.Known)) (event.StoredResource, error)
	Shape func(rule int, to event.AppendFunc) event.AppendFunc
	// Reshaped says of a resource that Shape does something else to it than before; nil: of none.
	Reshaped func(event.Resource) bool
}

// Edit gives the Source other rules, while it runs or before. Resources of which the same is selected as before, and that
// are not reshaped, go on untouched, on the same connections. Others stop and begin as a new process would with what is
// stored: what is selected now is compared with what is known; where nothing but the shape is another, the watch goes on
// from its position. It takes effect as soon as the API server has said what it serves, which it is asked at once. It is
// safe for concurrent use, and does not wait.
func (s *Source) Edit(e Edit) {
	s.mu.Lock()
	if before := s.edit; before != nil && before.Reshaped != nil { // not taken up yet
		now := e.Reshaped
		e.Reshaped = func(r event.Resource) bool { return before.Reshaped(r) || now != nil && now(r) }
	}
	s.edit = &e
	s.mu.Unlock()
	s.scheduler.requestPoll()
}

// applyEdit makes the newest rules those of the Source. It returns nil where they are already.
func (s *Source) applyEdit(ctx context.Context) (*Edit, error) {
	s.mu.Lock()
	e := s.edit
	s.edit = nil
	s.mu.Unlock()
	if e == nil {
		return nil, nil
	}
	s.cfg.Rules, s.cfg.Load, s.cfg.Shape = e.Rules, e.Load, e.Shape
	return e, s.startTriggers(ctx)
}

// stopChangedRunners ends the runners of resources that are to be followed otherwise, or no more, and waits until what they appended
// can be loaded. The poll that goes on starts them anew. e is an edit that was taken up, nil where there is none.
func (s *Source) stopChangedRunners(ctx context.Context, e *Edit, wanted map[string][]selection.Scope) error {
	ended := false
	for name, r := range s.runners {
		if len(r.followers) == 0 || r.isUnaffected(e, wanted[name]) {
			continue
		}
		select {
		case <-r.planned: // not before the gap that it may begin with is stored: announce waits for that
		case <-r.done:
		}
		r.stop()
		<-r.done
		if len(wanted[name]) == 0 {
			served := selection.Served{Resource: r.current, Namespaced: r.followers[0].scope.Namespaced}
			s.unfollowed[name] = &storedResource{Served: served}
		}
		s.removeRunners(func(other string, _ *runner) bool { return other == name })
		ended = true
	}
	if !ended || s.cfg.Flush == nil {
		return nil
	}
	if err := s.cfg.Flush(ctx); err != nil {
		return fmt.Errorf("wait for what was observed of another selection: %w", err)
	}
	return nil
}

// isUnaffected says that the runner, which has scopes, goes on as it is. A definition that is made anew may give a resource of
// namespaces to the cluster, under its name. Beside that only an edit makes a difference: what discovery hides for a moment,
// such as a version that a rule names, must not.
func (r *runner) isUnaffected(e *Edit, scopes []selection.Scope) bool {
	switch {
	case len(scopes) == 0, scopes[0].Namespaced != r.followers[0].scope.Namespaced:
		return false
	case e == nil:
		return true
	}
	return r.selectsSame(scopes) && (e.Reshaped == nil || !e.Reshaped(r.resource))
}

// selectsSame says that the runner does what these scopes of its resource ask for.
func (r *runner) selectsSame(scopes []selection.Scope) bool {
	type essence struct {
		id                      string
		metadataOnly, mandatory bool
		resync                  time.Duration
	}
	var now, then []essence
	for _, s := range scopes {
		now = append(now, essence{s.ID, s.MetadataOnly, s.Mandatory, s.Resync})
	}
	for _, f := range r.followers {
		then = append(then, essence{f.scope.ID, f.scope.MetadataOnly, f.scope.Mandatory, f.scope.Resync})
	}
	return slices.Equal(now, then)
}
