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

// storedResource is a resource of which something is stored, and that nothing follows.
type storedResource struct {
	selection.Served
	missingPolls int // in a row without the resource
}

// loadStoredResources notes of which resources something is stored.
func (s *Source) loadStoredResources() error {
	names, err := s.cfg.StoredResources()
	if err != nil {
		return err
	}
	for _, name := range names {
		m := &storedResource{}
		stored, err := s.cfg.Load(name, nil)
		if err != nil {
			return err
		}
		if m.Resource = stored.Resource; m.Resource.Version == "" {
			m.Resource = event.ParseResourceName(name)
		}
		s.unfollowed[name] = m
	}
	return nil
}

// addHiddenResources adds to what is served what was served before and is not named any more. That alone is no evidence: an API
// server that starts, or a proxy, may hide a resource whose objects exist. So it goes on being followed, and when its
// own address says 404 too, it is gone (see follower.failed).
func (s *Source) addHiddenResources(c selection.Catalog) (selection.Catalog, error) {
	counts := time.Since(s.lastCounted) >= s.cfg.Interval
	if counts {
		s.lastCounted = time.Now()
	}
	var missing []selection.Served
	for _, r := range s.runners {
		if s.countIfMissing(r.resource, &r.missingPolls, counts) && len(r.followers) > 0 {
			missing = append(missing, selection.Served{Resource: r.current, Namespaced: r.followers[0].scope.Namespaced})
		}
		if confirmed := r.missingPolls >= missingPollsUntilGone; confirmed != r.confirmedMissing.Swap(confirmed) && confirmed {
			for _, f := range r.followers {
				f.requestReconnect()
			}
		}
	}
	for name, m := range s.unfollowed {
		if !s.countIfMissing(m.Resource, &m.missingPolls, counts) || m.Resource.Version == "" && m.missingPolls < missingPollsUntilGone {
			continue
		}
		if err := s.loadNamespaced(name, m); err != nil {
			return nil, err
		}
		missing = append(missing, m.Served)
	}
	return c.With(missing), nil
}

// countIfMissing says that discovery was asked about the resource's group and does not name it, and counts how often.
func (s *Source) countIfMissing(r event.Resource, polls *int, counts bool) bool {
	if s.catalog.Has(r) || slices.Contains(s.failedGroups, r.Group) {
		*polls = 0
		return false
	}
	if counts {
		*polls++
	}
	return true
}

// loadNamespaced finds out whether a remembered resource lives in namespaces: its scopes name some, or its objects do.
func (s *Source) loadNamespaced(name string, m *storedResource) error {
	stored, err := s.cfg.Load(name, func(k event.Known) { m.Namespaced = strings.Contains(k.Key, "/") })
	named := func(s event.StoredScope) bool { return selection.IsNamespacedID(s.ID) }
	m.Namespaced = m.Namespaced || slices.ContainsFunc(stored.Scopes, named)
	return err
}

// announceUnselected announces that the objects of resources that no rule selects any more have left the selection. A resource that is
// waited for, because it is pinned to a version that is not served, has not left it.
func (s *Source) announceUnselected(ctx context.Context) {
	for name, m := range s.unfollowed {
		if slices.Contains(s.failedGroups, m.Resource.Group) || s.catalog.Awaits(s.cfg.Rules, m.Resource) {
			continue
		}
		s.startRunner(ctx, s.newRunner(m.Resource, nil))
		s.cfg.Log.Info("the rules do not select this resource any more; its objects are announced as deleted", "resource", name)
	}
}

// lostGroups says which resources begin with the gap that a lost journal asks for: those that are served when the API
// server is first asked, and those of groups that could not be asked then. What comes later was not watched before.
type lostGroups struct {
	initialized bool     // the API server has been asked once
	unanswered  []string // groups that have not answered since
}

func (l *lostGroups) reasonForGroup(group, lost string) string {
	if l.initialized && !slices.Contains(l.unanswered, group) {
		return ""
	}
	return lost
}

// recordGapsWhenPlanned lets the store forget that something was lost, once it is stored of each scope concerned that it begins with
// the gap (I5).
func (s *Source) recordGapsWhenPlanned(ctx context.Context) {
	if s.cfg.LostReason == "" {
		return
	}
	if !s.lostGroups.initialized {
		s.lostGroups.initialized, s.lostGroups.unanswered = true, slices.Clone(s.failedGroups)
	}
	s.lostGroups.unanswered = slices.DeleteFunc(s.lostGroups.unanswered, func(g string) bool { return !slices.Contains(s.failedGroups, g) })
	if len(s.lostGroups.unanswered) > 0 {
		return
	}
	s.cfg.LostReason = ""
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
		if err := s.cfg.GapsRecorded(ctx); err != nil && ctx.Err() == nil {
			s.fail(fmt.Errorf("note that the gaps are announced: %w", err))
		}
	})
}
