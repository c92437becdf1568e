package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// acceptDiscovery requests everything below a root in one document (aggregated discovery, KEP-3352). An API server before
// Kubernetes 1.30 returns only the names of groups and versions; each version is then requested separately.
const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

// discoveryRequests bounds the concurrent requests for versions of groups.
const discoveryRequests = 8

// Discover returns what the API server serves, and the groups that did not answer; those have their state from old. It tries
// once.
func (c *Client) Discover(ctx context.Context, old selection.Catalog) (selection.Catalog, []string, error) {
	client, err := c.restClient(&http.Client{Transport: &c.documents}, schema.GroupVersion{}, acceptDiscovery)
	if err != nil {
		return nil, nil, err
	}
	d := discovery{client: client, failed: map[string]bool{}}
	for _, root := range []string{"/api", "/apis"} {
		if err := d.readRoot(ctx, root); err != nil {
			return nil, nil, err
		}
	}
	c.ways.recordServer(d.readServerVersion(ctx), d.failed)
	unanswered := slices.Sorted(maps.Keys(d.failed))
	return selection.ReadCatalog(d.groups, d.lists, unanswered, old), unanswered, nil
}

// documents requests the documents of discovery only if they are not what they were, by their ETags: they may be megabytes,
// and are asked for every few seconds. Safe for concurrent use.
type documents struct {
	next   http.RoundTripper
	mu     sync.Mutex
	byPath map[string]document
}

type document struct {
	header http.Header
	body   []byte
}

// RoundTrip implements [http.RoundTripper].
func (d *documents) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	known := d.byPath[r.URL.Path]
	d.mu.Unlock()
	if tag := known.header.Get("ETag"); tag != "" {
		r = r.Clone(r.Context())
		r.Header.Set("If-None-Match", tag)
	}
	response, err := d.next.RoundTrip(r)
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode == http.StatusNotModified:
		response.StatusCode, response.Status, response.Header = http.StatusOK, "200 OK", known.header
	case response.StatusCode == http.StatusOK && response.Header.Get("ETag") != "":
		known = document{header: response.Header}
		if known.body, err = io.ReadAll(response.Body); err != nil {
			break
		}
		d.mu.Lock()
		d.byPath[r.URL.Path] = known
		d.mu.Unlock()
	default:
		return response, nil
	}
	response.Body.Close()
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(known.body)), int64(len(known.body))
	return response, err
}

// discovery collects the documents of one discovery.
type discovery struct {
	client rest.Interface
	groups []*metav1.APIGroup

	mu     sync.Mutex
	lists  []*metav1.APIResourceList
	failed map[string]bool // groups with a version that did not answer
}

// readServerVersion returns the version of the API server; "" if it does not tell.
func (d *discovery) readServerVersion(ctx context.Context) string {
	var server struct{ GitVersion string }
	if body, _, err := d.getDocument(ctx, "/version"); err != nil || json.Unmarshal(body, &server) != nil {
		return ""
	}
	return server.GitVersion
}

// readRoot reads everything below a root: /api for the core group, /apis for all others.
func (d *discovery) readRoot(ctx context.Context, root string) error {
	body, contentType, err := d.getDocument(ctx, root)
	switch {
	case root == "/api" && apierrors.IsNotFound(err):
		return nil // some API servers have no core group
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
	body, err = bodyOf(d.client.Get().AbsPath(path).MaxRetries(0).Timeout(RequestTimeout).Do(ctx).ContentType(&contentType))
	return body, contentType, err
}

// isAggregated reports whether a response is an aggregated discovery document.
func isAggregated(contentType string) bool {
	_, parameters, err := mime.ParseMediaType(contentType)
	return err == nil && parameters["g"] == apidiscovery.GroupName && parameters["v"] == "v2" && parameters["as"] == "APIGroupDiscoveryList"
}

// readAggregated reads an aggregated document. A version is stale if its aggregated API server does not answer.
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

// listableResources returns the resources of a version, without subresources and without resources that have only
// subresources.
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

// parseGroups reads a document with the names of groups and their versions.
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

func (d *discovery) readVersions(ctx context.Context, root string, groups []metav1.APIGroup) {
	var asking errgroup.Group
	asking.SetLimit(discoveryRequests)
	for i, g := range groups {
		d.groups = append(d.groups, &groups[i])
		for _, v := range g.Versions {
			asking.Go(func() error { d.readVersion(ctx, root, g.Name, v.GroupVersion); return nil })
		}
	}
	_ = asking.Wait() // none fails
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

// Explain resolves the rules against what the API server serves. It tries once. Groups that did not answer are listed in
// Unanswered and are not an error.
func (c *Client) Explain(ctx context.Context, rules []selection.Rule) (*selection.Explanation, error) {
	if err := selection.Validate(rules); err != nil {
		return nil, err
	}
	found, unanswered, err := c.Discover(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("discovery at the API server %s: %w", c.Host(), err)
	}
	e := selection.Resolve(rules, found)
	e.Unanswered = unanswered
	return e, nil
}
