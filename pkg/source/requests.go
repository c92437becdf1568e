package source

import "github.com/kubecdc/kubecdc/pkg/source/selection"

// SelectScopes returns the IDs of the watched scopes by the names of their resources: those of the resources that names
// select as the rules do, all without names; and with a namespace only those that can have objects of it. unknown are the
// names that select nothing. It is complete once the source has found what is served, which discovered reports.
func (s *Source) SelectScopes(names []string, namespace string) (scopes map[string][]string, unknown []string, discovered bool) {
	scopes = map[string][]string{}
	discovered = s.runners.isDiscovered()
	all := s.runners.allRunners()
	if len(names) == 0 {
		scopes, _, discovered = s.SelectScopes([]string{"*"}, namespace)
		return scopes, nil, discovered
	}
	for _, name := range names {
		isSelected, found := selection.Rule{Select: []string{name}}.Matcher(), false
		for _, r := range all {
			if !isSelected(r.resource) {
				continue
			}
			found = true
			for _, f := range r.followers {
				if namespace == "" || f.scope.Namespaced && (f.scope.Namespace == "" || f.scope.Namespace == namespace) {
					scopes[r.resource.String()] = append(scopes[r.resource.String()], f.scope.ID)
				}
			}
		}
		if !found {
			unknown = append(unknown, name)
		}
	}
	return scopes, unknown, discovered
}

// EmitRequested looks for snapshots that the store has new requests for, and emits them.
func (s *Source) EmitRequested() {
	for _, r := range s.runners.allRunners() {
		for _, f := range r.followers {
			signal(f.requested)
		}
	}
}
