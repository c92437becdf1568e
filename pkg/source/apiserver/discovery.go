package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Discover asks the API server what it serves, and returns the groups that could not be asked too: of these, what was in
// old stays. It tries once.
func (c *Client) Discover(ctx context.Context, old selection.Catalog) (selection.Catalog, []string, error) {
	config := rest.CopyConfig(c.config)
	config.Timeout = RequestTimeout
	client, err := discovery.NewDiscoveryClientForConfigAndClient(config, c.http)
	if err != nil {
		return nil, nil, err
	}
	groups, lists, err := discovery.ServerGroupsAndResourcesWithContext(ctx, client)
	var partial *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partial) {
		return nil, nil, err
	}
	failed := map[string]bool{}
	if partial != nil {
		for gv := range partial.Groups {
			failed[gv.Group] = true
		}
	}
	unanswered := slices.Sorted(maps.Keys(failed))
	return selection.ReadCatalog(groups, lists, unanswered, old), unanswered, nil
}

// Explain asks the API server what it serves and says what the rules select of it. It tries once. That some groups could
// not be asked is no error.
func (c *Client) Explain(ctx context.Context, rules []selection.Rule) (*selection.Explanation, error) {
	if err := selection.Validate(rules); err != nil {
		return nil, err
	}
	found, unanswered, err := c.Discover(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("asking the API server at %s what it serves: %w", c.Host(), err)
	}
	e := selection.Resolve(rules, found)
	e.Unanswered = unanswered
	return e, nil
}
