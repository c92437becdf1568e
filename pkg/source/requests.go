package source

import (
	"strings"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Selected is a part of what is watched.
type Selected struct {
	Names     []string // of resources, as rules name them; nil for all
	Namespace string   // the only one; "" for all
	Objects   []string // keys of the only objects, "namespace/name", or "name" of cluster-scoped ones; nil for all
}

// SelectedScope is a watched scope of which something is selected.
type SelectedScope struct {
	Resource, ID string
	Objects      []string // those that it can have; nil for all
}

// SelectScopes returns the watched scopes that can have what is selected. unknown are the names that select nothing. It is
// complete once the source has found what is served, which discovered reports.
func (s *Source) SelectScopes(of Selected) (scopes []SelectedScope, unknown []string, discovered bool) {
	discovered = s.runners.isDiscovered()
	all := s.runners.allRunners()
	if len(of.Names) == 0 {
		of.Names = []string{"*"}
		scopes, _, discovered = s.SelectScopes(of)
		return scopes, nil, discovered
	}
	found := map[string]bool{} // IDs
	for _, name := range of.Names {
		isSelected, known := selection.Rule{Select: []string{name}}.Matcher(), false
		for _, r := range all {
			if !isSelected(r.resource) {
				continue
			}
			known = true
			for _, f := range r.followers {
				if objects, has := of.partIn(f.scope); has && !found[f.scope.ID] {
					found[f.scope.ID] = true
					scopes = append(scopes, SelectedScope{r.resource.String(), f.scope.ID, objects})
				}
			}
		}
		if !known {
			unknown = append(unknown, name)
		}
	}
	return scopes, unknown, discovered
}

// partIn returns the selected objects that a scope can have, nil for all, and whether it can have any.
func (of Selected) partIn(scope selection.Scope) (objects []string, has bool) {
	covers := func(namespace string) bool { return scope.Namespace == "" || scope.Namespace == namespace }
	if of.Namespace != "" && (!scope.Namespaced || !covers(of.Namespace)) {
		return nil, false
	}
	for _, key := range of.Objects {
		namespace, _, namespaced := strings.Cut(key, "/")
		if namespaced == scope.Namespaced && (!namespaced || covers(namespace)) {
			objects = append(objects, key)
		}
	}
	return objects, of.Objects == nil || len(objects) > 0
}

// EmitWatermarks has each watched scope emit a watermark now, also where nothing has changed since the last one.
func (s *Source) EmitWatermarks() {
	for _, r := range s.runners.allRunners() {
		for _, f := range r.followers {
			f.out.watermarks.request()
		}
	}
}

// EmitRequested looks for snapshots that the store has new requests for, and emits them.
func (s *Source) EmitRequested() {
	for _, r := range s.runners.allRunners() {
		for _, f := range r.followers {
			signal(f.requested)
		}
	}
}
