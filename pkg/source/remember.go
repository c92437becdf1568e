package source

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// remembered is a resource of which something is stored, and that nothing follows.
type remembered struct {
	selection.Served
	polls int // in a row without the resource
}

// remember notes of which resources something is stored.
func (s *Source) remember() error {
	names, err := s.cfg.Stored()
	if err != nil {
		return err
	}
	for _, name := range names {
		m := &remembered{}
		stored, err := s.cfg.Load(name, nil)
		if err != nil {
			return err
		}
		if m.Resource = stored.Resource; m.Resource.Version == "" {
			m.Resource = event.ResourceNamed(name)
		}
		s.remembered[name] = m
	}
	return nil
}

// withMissing adds to what is served what was served before and is not named any more. That alone is no evidence: an API
// server that starts, or a proxy, may hide a resource whose objects exist. So it goes on being followed, and when its
// own address says 404 too, it is gone (see follower.failed).
func (s *Source) withMissing(c selection.Catalog) (selection.Catalog, error) {
	counts := time.Since(s.counted) >= s.cfg.Interval
	if counts {
		s.counted = time.Now()
	}
	var missing []selection.Served
	for _, r := range s.runners {
		if s.isMissing(r.resource, &r.polls, counts) && len(r.followers) > 0 {
			missing = append(missing, selection.Served{Resource: r.current, Namespaced: r.followers[0].scope.Namespaced})
		}
		if confirmed := r.polls >= pollsUntilGone; confirmed != r.missing.Swap(confirmed) && confirmed {
			for _, f := range r.followers {
				f.nudge()
			}
		}
	}
	for name, m := range s.remembered {
		if !s.isMissing(m.Resource, &m.polls, counts) || m.Resource.Version == "" && m.polls < pollsUntilGone {
			continue
		}
		if err := s.findScope(name, m); err != nil {
			return nil, err
		}
		missing = append(missing, m.Served)
	}
	return c.With(missing), nil
}

// isMissing says that discovery was asked about the resource's group and does not name it, and counts how often.
func (s *Source) isMissing(r event.Resource, polls *int, counts bool) bool {
	if s.catalog.Has(r) || slices.Contains(s.failing, r.Group) {
		*polls = 0
		return false
	}
	if counts {
		*polls++
	}
	return true
}

// findScope finds out whether a remembered resource lives in namespaces: its scopes name some, or its objects do.
func (s *Source) findScope(name string, m *remembered) error {
	stored, err := s.cfg.Load(name, func(k event.Known) { m.Namespaced = strings.Contains(k.Key, "/") })
	named := func(s event.StoredScope) bool { return selection.NamesNamespaces(s.ID) }
	m.Namespaced = m.Namespaced || slices.ContainsFunc(stored.Scopes, named)
	return err
}

// leave announces that the objects of resources that no rule selects any more have left the selection. A resource that is
// waited for, because it is pinned to a version that is not served, has not left it.
func (s *Source) leave(ctx context.Context) {
	for name, m := range s.remembered {
		if slices.Contains(s.failing, m.Resource.Group) || s.catalog.Awaits(s.cfg.Rules, m.Resource) {
			continue
		}
		s.start(ctx, s.newRunner(m.Resource, nil))
		s.cfg.Log.Info("the rules do not select this resource any more; its objects are announced as deleted", "resource", name)
	}
}

// lostGroups says which resources begin with the gap that a lost journal asks for: those that are served when the API
// server is first asked, and those of groups that could not be asked then. What comes later was not watched before.
type lostGroups struct {
	asked bool     // the API server has been asked once
	open  []string // groups that have not answered since
}

func (l *lostGroups) of(group, lost string) string {
	if l.asked && !slices.Contains(l.open, group) {
		return ""
	}
	return lost
}

// announce lets the store forget that something was lost, once it is stored of each scope concerned that it begins with
// the gap (I5).
func (s *Source) announce(ctx context.Context) {
	if s.cfg.Lost == "" {
		return
	}
	if !s.lost.asked {
		s.lost.asked, s.lost.open = true, slices.Clone(s.failing)
	}
	s.lost.open = slices.DeleteFunc(s.lost.open, func(g string) bool { return !slices.Contains(s.failing, g) })
	if len(s.lost.open) > 0 {
		return
	}
	s.cfg.Lost = ""
	var runners []*runner
	for _, r := range s.runners {
		runners = append(runners, r)
	}
	s.running.Go(func() {
		for _, r := range runners {
			select {
			case <-r.planned:
			case <-ctx.Done():
				return
			}
		}
		if err := s.cfg.Announced(ctx); err != nil && ctx.Err() == nil {
			s.failed(fmt.Errorf("note that the gaps are announced: %w", err))
		}
	})
}
