package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Client talks to one API server. All scopes share its connections. It is safe for concurrent use.
type Client struct {
	config *rest.Config
	http   *http.Client
	// afresh opens a connection for each request, which a load balancer may give to another API server. HTTP/2 would put
	// all requests on one.
	afresh *http.Client
}

// NewClient returns a client for the API server that config names. It copies config and overrides what this package
// depends on: JSON without compression (gzip would double the cost of reading a watch), no rate limit on the client's
// side (the number of concurrent lists is bounded instead, and the API server has its own fairness), and no timeout on
// the connection, which would end watches. It connects to nothing.
func NewClient(config *rest.Config, version string) (*Client, error) {
	c := rest.CopyConfig(config)
	c.UserAgent = "kubecdc/" + version
	c.DisableCompression = true
	c.QPS, c.RateLimiter = -1, nil
	c.Timeout = 0
	c.WarningHandler = rest.NoWarnings{}
	c.ContentConfig = rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}
	h, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("client for the API server at %s: %w", c.Host, err)
	}
	single := rest.CopyConfig(c)
	single.NextProtos = []string{"http/1.1"}
	afresh, err := rest.HTTPClientFor(single)
	if err != nil {
		return nil, fmt.Errorf("client for the API server at %s: %w", c.Host, err)
	}
	return &Client{config: c, http: h, afresh: afresh}, nil
}

// Host is the address of the API server, for messages.
func (c *Client) Host() string { return c.config.Host }

// ClusterUID returns the UID of the namespace kube-system, which is as old as the cluster and the nearest thing to a
// name that every cluster has. It tries once.
func (c *Client) ClusterUID(ctx context.Context) (string, error) {
	e, err := c.endpoint(Scope{Resource: event.Resource{Version: "v1", Resource: "namespaces", Kind: "Namespace"}})
	if err != nil {
		return "", err
	}
	o, err := e.client.Get().Resource("namespaces").Name(metav1.NamespaceSystem).MaxRetries(0).Timeout(requestTimeout).Do(ctx).Get()
	if err != nil {
		return "", err
	}
	m, ok := o.(metav1.Object)
	if !ok || m.GetUID() == "" {
		return "", errors.New("the namespace kube-system has no UID")
	}
	return string(m.GetUID()), nil
}

// ofMetadata returns a client that reads of each object its metadata alone (PartialObjectMetadata). It shares the
// connections of c.
func (c *Client) ofMetadata() *Client {
	config := rest.CopyConfig(c.config)
	config.AcceptContentTypes = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	return &Client{config: config, http: c.http, afresh: c.afresh}
}

func (c *Client) discovery() (*discovery.DiscoveryClient, error) {
	config := rest.CopyConfig(c.config)
	config.Timeout = requestTimeout
	return discovery.NewDiscoveryClientForConfigAndClient(config, c.http)
}

const (
	// requestTimeout bounds requests that are answered at once, so that a dead connection is noticed.
	requestTimeout = 30 * time.Second
	// listTimeout bounds one page of a list.
	listTimeout = 2 * time.Minute
	// Watches are ended by the API server after a random time in this range, so that rights are checked anew and load
	// spreads over API servers. client-go's Reflector has the same.
	minWatch, maxWatch = 5 * time.Minute, 10 * time.Minute
	// watchGrace is how long a watch may outlive that time before the connection is taken for dead.
	watchGrace = 30 * time.Second
)

// endpoint lists and watches one scope. Every call is one request: whether to try again is the caller's decision, who
// has to say so in the state of the scope.
type endpoint struct {
	client rest.Interface
	afresh rest.Interface // see Client
	scope  Scope
	wire   *wire
}

func (c *Client) endpoint(s Scope) (*endpoint, error) {
	w := newWire(s)
	config := rest.CopyConfig(c.config)
	if s.MetadataOnly {
		config.AcceptContentTypes = acceptMetadata
	}
	config.GroupVersion = &schema.GroupVersion{Group: s.Resource.Group, Version: s.Resource.Version}
	config.APIPath = "/apis"
	if s.Resource.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = w
	client, err := rest.RESTClientForConfigAndClient(config, c.http)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", s.ID, err)
	}
	afresh, err := rest.RESTClientForConfigAndClient(config, c.afresh)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", s.ID, err)
	}
	return &endpoint{client: client, afresh: afresh, scope: s, wire: w}, nil
}

func (e *endpoint) request(client rest.Interface, o metav1.ListOptions) *rest.Request {
	o.LabelSelector = e.scope.LabelSelector
	if o.FieldSelector == "" {
		o.FieldSelector = e.scope.FieldSelector
	}
	return client.Get().
		NamespaceIfScoped(e.scope.Namespace, e.scope.Namespace != "").
		Resource(e.scope.Resource.Resource).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).
		MaxRetries(0)
}

// list reads one page.
func (e *endpoint) list(ctx context.Context, o metav1.ListOptions) (*list, error) {
	obj, err := e.request(e.client, o).Timeout(listTimeout).Do(ctx).Get()
	if err != nil {
		return nil, denied("list", err)
	}
	l, ok := obj.(*list)
	if !ok {
		return nil, fmt.Errorf("the answer to a list of %s holds no list but %T", e.scope.Resource, obj)
	}
	return l, nil
}

// watch opens a watch that ends after a random time, or after the one given. The context must live as long as the watch.
func (e *endpoint) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return watchWith(ctx, o, func(o metav1.ListOptions) *rest.Request { return e.request(e.client, o) })
}

// watchAfresh is watch on a connection of its own.
func (e *endpoint) watchAfresh(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return watchWith(ctx, o, func(o metav1.ListOptions) *rest.Request {
		return e.request(e.afresh, o).SetHeader("Connection", "close")
	})
}

func watchWith(ctx context.Context, o metav1.ListOptions, request func(metav1.ListOptions) *rest.Request) (watch.Interface, error) {
	o.Watch, o.AllowWatchBookmarks = true, true
	if o.TimeoutSeconds == nil {
		seconds := int64((minWatch + rand.N(maxWatch-minWatch)) / time.Second)
		o.TimeoutSeconds = &seconds
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+watchGrace)
	w, err := request(o).Watch(ctx)
	if err != nil {
		cancel()
		return nil, denied("watch", err)
	}
	return &boundedWatch{Interface: w, cancel: cancel}, nil
}

// boundedWatch ends its context when it is stopped.
type boundedWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

func (w *boundedWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}

// statusOf returns what an ERROR event says.
func statusOf(e watch.Event) error { return apierrors.FromObject(e.Object) }
