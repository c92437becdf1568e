package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"slices"
	"sync"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// acceptDiscovery asks for everything below a root in one document. An API server before Kubernetes 1.30 sends the names of
// groups and versions only, and is then asked for each.
const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

// discoveryRequests is how many versions of groups are asked for at a time.
const discoveryRequests = 8

// Discover asks the API server what it serves, and returns the groups that could not be asked too: of these, what was in
// old stays. It tries once.
func (c *Client) Discover(ctx context.Context, old selection.Catalog) (selection.Catalog, []string, error) {
	client, err := c.restClient(c.http, schema.GroupVersion{}, acceptDiscovery)
	if err != nil {
		return nil, nil, err
	}
	d := discovery{client: client, failed: map[string]bool{}}
	for _, root := range []string{"/api", "/apis"} {
		if err := d.readRoot(ctx, root); err != nil {
			return nil, nil, err
		}
	}
	unanswered := slices.Sorted(maps.Keys(d.failed))
	return selection.ReadCatalog(d.groups, d.lists, unanswered, old), unanswered, nil
}

// discovery collects what one API server serves.
type discovery struct {
	client rest.Interface
	groups []*metav1.APIGroup

	mu     sync.Mutex
	lists  []*metav1.APIResourceList
	failed map[string]bool // groups of which something could not be asked
}

// readRoot reads what is below a root, /api for the core group and /apis for all others.
func (d *discovery) readRoot(ctx context.Context, root string) error {
	body, contentType, err := d.getDocument(ctx, root)
	switch {
	case root == "/api" && apierrors.IsNotFound(err):
		return nil // there may be no core group
	case err != nil:
		return err
	case isAggregated(contentType):
		return d.readAggregated(body)
	}
	groups, err := parseGroups(root, body)
	if err != nil {
		return fmt.Errorf("GET %s: %w", root, err)
	}
	d.readVersions(ctx, root, groups)
	return ctx.Err()
}

func (d *discovery) getDocument(ctx context.Context, path string) (body []byte, contentType string, err error) {
	answer := d.client.Get().AbsPath(path).MaxRetries(0).Timeout(RequestTimeout).Do(ctx).ContentType(&contentType)
	if err := answer.Error(); err != nil { // says more than that of Raw
		return nil, "", err
	}
	body, err = answer.Raw()
	return body, contentType, err
}

// isAggregated says which of the two forms an answer has.
func isAggregated(contentType string) bool {
	_, parameters, err := mime.ParseMediaType(contentType)
	return err == nil && parameters["g"] == apidiscovery.GroupName && parameters["v"] == "v2" && parameters["as"] == "APIGroupDiscoveryList"
}

// readAggregated reads a document that holds everything. A version is stale when its API server, an aggregated one, does not
// answer.
func (d *discovery) readAggregated(body []byte) error {
	var all apidiscovery.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &all); err != nil {
		return err
	}
	for _, g := range all.Items {
		group := &metav1.APIGroup{Name: g.Name}
		for _, v := range g.Versions {
			if v.Freshness == apidiscovery.DiscoveryFreshnessStale {
				d.failed[g.Name] = true
				continue
			}
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{Version: v.Version})
			d.lists = append(d.lists, &metav1.APIResourceList{
				GroupVersion: schema.GroupVersion{Group: g.Name, Version: v.Version}.String(), APIResources: listableResources(v),
			})
		}
		d.groups = append(d.groups, group)
	}
	return nil
}

// listableResources leaves subresources out, and what has subresources only.
func listableResources(v apidiscovery.APIVersionDiscovery) (found []metav1.APIResource) {
	for _, r := range v.Resources {
		if r.ResponseKind != nil && r.ResponseKind.Kind != "" {
			found = append(found, metav1.APIResource{
				Name: r.Resource, Kind: r.ResponseKind.Kind, Namespaced: r.Scope == apidiscovery.ScopeNamespace, Verbs: r.Verbs,
				SingularName: r.SingularResource, ShortNames: r.ShortNames,
			})
		}
	}
	return found
}

// parseGroups reads a document that names groups and their versions.
func parseGroups(root string, body []byte) ([]metav1.APIGroup, error) {
	if root == "/api" {
		var core metav1.APIVersions
		if err := json.Unmarshal(body, &core); err != nil {
			return nil, err
		}
		group := metav1.APIGroup{}
		for _, v := range core.Versions {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: v, Version: v})
		}
		return []metav1.APIGroup{group}, nil
	}
	var named metav1.APIGroupList
	err := json.Unmarshal(body, &named)
	return named.Groups, err
}

// readVersions asks for each version of the groups.
func (d *discovery) readVersions(ctx context.Context, root string, groups []metav1.APIGroup) {
	var asking sync.WaitGroup
	slots := make(chan struct{}, discoveryRequests)
	for i, g := range groups {
		d.groups = append(d.groups, &groups[i])
		for _, v := range g.Versions {
			slots <- struct{}{}
			asking.Go(func() {
				defer func() { <-slots }()
				d.readVersion(ctx, root, g.Name, v.GroupVersion)
			})
		}
	}
	asking.Wait()
}

func (d *discovery) readVersion(ctx context.Context, root, group, groupVersion string) {
	list := &metav1.APIResourceList{}
	body, _, err := d.getDocument(ctx, root+"/"+groupVersion)
	if err == nil {
		err = json.Unmarshal(body, list)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.failed[group] = true
		return
	}
	list.GroupVersion = groupVersion
	d.lists = append(d.lists, list)
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
