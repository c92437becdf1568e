package source

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// missingPollsUntilGone is the number of consecutive polls, each at least an interval after the previous one, that must lack
// a resource before a 404 of its own address means that it is gone. Polls requested by triggers are closer together and do
// not count: a starting API server may briefly serve less.
const missingPollsUntilGone = 2

// absence counts the consecutive polls that lacked one resource.
type absence struct{ polls int }

// recordPoll reports whether discovery lacks r although its group has answered. counts is whether this poll counts, see
// missingPollsUntilGone.
func (a *absence) recordPoll(found Discovery, r event.Resource, counts bool) (missing bool) {
	if found.Catalog.Has(r) || slices.Contains(found.Failed, r.Group) {
		a.polls = 0
		return false
	}
	if counts {
		a.polls++
	}
	return true
}

// storedResources are the resources with stored state that have no runner. It is used by the goroutine of Source.Run.
type storedResources struct {
	cfg    *Config
	byName map[string]*storedResource
}

type storedResource struct {
	selection.Served
	absence absence
}

// loadNames reads the names and the versions of all stored resources.
func (s *storedResources) loadNames() error {
	names, err := s.cfg.StoredResources()
	if err != nil {
		return err
	}
	for _, name := range names {
		stored, err := s.cfg.Load(event.ParseResourceName(name), nil)
		if err != nil {
			return err
		}
		one := &storedResource{}
		if one.Resource = stored.Resource; one.Resource.Version == "" {
			one.Resource = event.ParseResourceName(name)
		}
		s.byName[name] = one
	}
	return nil
}

// hiddenResources returns the stored resources that discovery lacks. One without a stored version cannot be watched before
// discovery names it, so it is included only when it is to be dropped.
func (s *storedResources) hiddenResources(found Discovery, counts bool) (hidden []selection.Served, err error) {
	for _, one := range s.byName {
		missing := one.absence.recordPoll(found, one.Resource, counts)
		if !missing || one.Resource.Version == "" && one.absence.polls < missingPollsUntilGone {
			continue
		}
		if err := one.loadNamespaced(s.cfg.Load); err != nil {
			return nil, err
		}
		hidden = append(hidden, one.Served)
	}
	return hidden, nil
}

// loadNamespaced determines whether a resource is namespaced: it is if its scopes name namespaces, or its known objects do.
func (one *storedResource) loadNamespaced(load LoadFunc) error {
	stored, err := load(event.ParseResourceName(one.Resource.String()), func(k event.Known) { one.Namespaced = strings.Contains(k.Key, "/") })
	hasNamespace := func(s event.StoredScope) bool { return selection.IsNamespacedID(s.ID) }
	one.Namespaced = one.Namespaced || slices.ContainsFunc(stored.Scopes, hasNamespace)
	return err
}

// initialGaps decides which resources begin with a gap because stored positions were lost: those served at the first poll,
// and those of groups that did not answer then. Resources served later were not watched before the loss. It is used by the
// goroutine of Source.Run.
type initialGaps struct {
	reason     string   // empty if nothing was lost, or once the gaps are recorded
	polled     bool     // the first poll has succeeded
	unanswered []string // groups that have not answered since
}

func (g *initialGaps) reasonFor(group string) string {
	if g.polled && !slices.Contains(g.unanswered, group) {
		return ""
	}
	return g.reason
}

// recordPoll takes the groups that did not answer in a poll. It returns true once: when all runners that begin with a gap
// have been started.
func (g *initialGaps) recordPoll(failed []string) (complete bool) {
	if g.reason == "" {
		return false
	}
	if !g.polled {
		g.polled, g.unanswered = true, slices.Clone(failed)
	}
	g.unanswered = slices.DeleteFunc(g.unanswered, func(group string) bool { return !slices.Contains(failed, group) })
	if len(g.unanswered) > 0 {
		return false
	}
	g.reason = ""
	return true
}
