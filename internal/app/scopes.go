package app

import (
	"context"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
)

// byScope shows the journal, which knows objects by resource, to a source that asks for scopes. It goes when the source asks
// for resources.
type byScope struct {
	*journal.Journal
	open shape.Load
}

// load returns what is stored of a scope.
func (j byScope) load(id string) (event.Stored, error) {
	name, rest, _ := strings.Cut(id, ";")
	_, rest, one := strings.Cut(";"+rest, ";ns=")
	namespace, _, _ := strings.Cut(rest, ";")
	var s event.Stored
	resource, err := j.open(name, func(k event.Known) {
		if !one || strings.HasPrefix(k.Key, namespace+"/") {
			s.Known = append(s.Known, k)
		}
	})
	for _, scope := range resource.Scopes {
		if scope.ID == id {
			s.Position, s.Snapshot = scope.Position, scope.Snapshot
		}
	}
	return s, err
}

// scopes returns the IDs of all scopes of which something is stored.
func (j byScope) scopes() ([]string, error) {
	names, err := j.Resources()
	var ids []string
	for _, name := range names {
		r, err := j.LoadResource(name, func(event.Known) {})
		if err != nil {
			return nil, err
		}
		for _, scope := range r.Scopes {
			ids = append(ids, scope.ID)
		}
	}
	return ids, err
}

// drop forgets a scope, and with the last one of a resource the resource.
func (j byScope) drop(ctx context.Context, id string) error {
	name, _, _ := strings.Cut(id, ";")
	r, err := j.LoadResource(name, func(event.Known) {})
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(r.Scopes, func(s event.StoredScope) bool { return s.ID == id })
	if len(left) == 0 {
		return j.DropResource(ctx, name)
	}
	return j.SetScopes(ctx, r.Resource, left)
}
