package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
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
	e, err := c.endpoint(selection.Scope{Resource: event.Resource{Version: "v1", Resource: "namespaces", Kind: "Namespace"}})
	if err != nil {
		return "", err
	}
	answer := e.client.Get().Resource("namespaces").Name(metav1.NamespaceSystem).MaxRetries(0).Timeout(requestTimeout).Do(ctx)
	if err := answer.Error(); err != nil {
		return "", err
	}
	body, err := answer.Raw()
	if err != nil {
		return "", err
	}
	o, err := e.decoder.Object(body)
	if err != nil {
		return "", err
	}
	if o.UID == "" {
		return "", errors.New("the namespace kube-system has no UID")
	}
	return o.UID, nil
}

// ofMetadata returns a client that reads of each object its metadata alone, and nothing where there is no such form. It shares
// the connections of c.
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
	// headersTimeout is how long an answer may take to begin. An API server whose cache cannot be filled lets requests wait,
	// half a minute and more, before it says so; one that hangs never does.
	headersTimeout = time.Minute
	// Watches are ended by the API server after a random time in this range, so that rights are checked anew and load
	// spreads over API servers. client-go's Reflector has the same.
	minWatch, maxWatch = 5 * time.Minute, 10 * time.Minute
	// watchGrace is how long a watch may outlive that time before the connection is taken for dead.
	watchGrace = 30 * time.Second
)

// acceptMetadata asks for PartialObjectMetadata. An API server that does not know it, as an aggregated one may, sends whole
// objects, and what is too much is left out here.
const acceptMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// statuses lets the REST client read the errors of the API server; objects are read by a decoder.
var statuses = func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}()

// endpoint lists and watches one scope. Every call is one request: whether to try again is the caller's decision, who
// has to say so in the state of the scope.
type endpoint struct {
	client  rest.Interface
	afresh  rest.Interface // see Client
	scope   selection.Scope
	decoder *decode.Decoder
}

func (c *Client) endpoint(s selection.Scope) (*endpoint, error) {
	config := rest.CopyConfig(c.config)
	if s.MetadataOnly {
		config.AcceptContentTypes = acceptMetadata
	}
	config.GroupVersion = &schema.GroupVersion{Group: s.Resource.Group, Version: s.Resource.Version}
	config.APIPath = "/apis"
	if s.Resource.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = statuses
	client, err := rest.RESTClientForConfigAndClient(config, c.http)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", s.ID, err)
	}
	afresh, err := rest.RESTClientForConfigAndClient(config, c.afresh)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", s.ID, err)
	}
	return &endpoint{client: client, afresh: afresh, scope: s, decoder: decode.New(s.Resource, s.MetadataOnly)}, nil
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

// open sends a request and returns the body of the answer, which the caller closes. It waits no longer than headersTimeout
// for the answer to begin, and holds s, which may be nil, for no longer than slowAfter of that.
func open(ctx context.Context, s *slot, verb string, r *rest.Request) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer s.asking()()
	late := time.AfterFunc(headersTimeout, func() { cancel(errNoAnswer) })
	body, err := r.Stream(ctx)
	if !late.Stop() && errors.Is(context.Cause(ctx), errNoAnswer) {
		err = errNoAnswer
	}
	if err == nil {
		err = s.answered(ctx)
	}
	if err != nil {
		cancel(nil)
		if body != nil {
			_ = body.Close() // it was read by nobody
		}
		return nil, denied(verb, err)
	}
	return &responseBody{body, cancel}, nil
}

// responseBody ends its request when it is closed.
type responseBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *responseBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// list reads one page of what exists now, or what follows a page, and gives each object to take. Without take only what
// the page says of itself is of interest.
func (e *endpoint) list(ctx context.Context, s *slot, o metav1.ListOptions, take func(*deltas.Object) error) (metav1.ListMeta, error) {
	if take == nil {
		take = func(*deltas.Object) error { return nil }
	}
	body, err := open(ctx, s, "list", e.request(e.client, o))
	if err != nil {
		return metav1.ListMeta{}, err
	}
	defer body.Close()
	return e.decoder.Page(body, take)
}

// newest is the resourceVersion of now, as etcd has it.
func (e *endpoint) newest(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	meta, err := e.list(ctx, nil, metav1.ListOptions{Limit: 1}, nil)
	return meta.ResourceVersion, err
}

// watch opens a watch that ends after a random time, or after the one given. The caller stops the connection.
func (e *endpoint) watch(ctx context.Context, s *slot, o metav1.ListOptions) (*connection, error) {
	return e.watchBy(ctx, s, o, func(o metav1.ListOptions) *rest.Request { return e.request(e.client, o) })
}

// watchAfresh is watch on a connection of its own.
func (e *endpoint) watchAfresh(ctx context.Context, s *slot, o metav1.ListOptions) (*connection, error) {
	return e.watchBy(ctx, s, o, func(o metav1.ListOptions) *rest.Request {
		return e.request(e.afresh, o).SetHeader("Connection", "close")
	})
}

func (e *endpoint) watchBy(
	ctx context.Context, s *slot, o metav1.ListOptions, request func(metav1.ListOptions) *rest.Request,
) (*connection, error) {
	o.Watch, o.AllowWatchBookmarks = true, true
	if o.TimeoutSeconds == nil {
		seconds := int64((minWatch + rand.N(maxWatch-minWatch)) / time.Second)
		o.TimeoutSeconds = &seconds
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+watchGrace)
	body, err := open(ctx, s, "watch", request(o))
	if err != nil {
		cancel()
		return nil, err
	}
	return connect(body, cancel, e.decoder), nil
}
