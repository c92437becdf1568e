package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Client sends requests to one API server. All scopes share its connections. It is safe for concurrent use.
type Client struct {
	config      *rest.Config // with the first address, see connector
	credentials *credentials
	http, fresh *http.Client  // see connections
	documents   documents     // of discovery, by c.http
	skew        *atomic.Int64 // nanoseconds by which this machine's clock is ahead
	ways        wayTable
}

// RequestTimeout bounds requests that the API server answers at once, so that a dead connection is detected.
const RequestTimeout = 30 * time.Second

// healthCheck has the environment variables by which client-go is configured: after how many seconds without a frame an
// HTTP/2 connection is checked by a ping, and after how many more seconds without an answer it is given up. Watches are
// silent for up to a minute, so nothing else notices an API server that hangs. client-go's own values, 30 and 15, leave the
// exporter ready for 45 seconds.
var healthCheck = map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"}

// setHealthCheck sets the variables of healthCheck that are not set.
func setHealthCheck() error {
	for name, seconds := range healthCheck {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, seconds); err != nil {
			return fmt.Errorf("configure the health check of connections: %w", err)
		}
	}
	return nil
}

// acceptMetadata requests PartialObjectMetadata in each event of a watch, and acceptMetadataList in a list; an API server
// refuses one for the other. One that knows neither, as an aggregated one may not, sends whole objects; the decoder then
// drops the rest.
const (
	acceptMetadata     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
	acceptMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)

// statusNegotiator lets the REST client decode errors of the API server. Objects are read by package decode.
var statusNegotiator = func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}()

// NewClient is NewReloadingClient with a configuration that does not change, except for the files that it names.
func NewClient(config *rest.Config, version string) (*Client, error) {
	return NewReloadingClient(func() (*rest.Config, error) { return config, nil }, version)
}

// NewReloadingClient returns a client for the API server that load returns; load is called again and again, because
// credentials change. The client copies the configuration and overrides what this package depends on: JSON without
// compression (gzip doubles the cost of reading a watch), no client-side rate limit (concurrent lists are bounded instead,
// and the API server has priority and fairness), and no timeout on the connection, which would end watches. Unless the
// environment has others, it sets the variables of healthCheck. version becomes part of the user agent. It connects to
// nothing.
func NewReloadingClient(load func() (*rest.Config, error), version string) (*Client, error) {
	if err := setHealthCheck(); err != nil {
		return nil, err
	}
	c := &Client{skew: &atomic.Int64{}}
	c.credentials = &credentials{load: load, prepare: func(config *rest.Config) { c.prepare(config, version) }}
	if err := c.credentials.look(0); err != nil {
		return nil, err
	}
	first := c.credentials.current.Load()
	c.config = first.config
	c.http = &http.Client{Transport: &connector{c.credentials, first.base, false}}
	c.documents = documents{next: c.http.Transport, byPath: map[string]document{}}
	c.fresh = &http.Client{Transport: &connector{c.credentials, first.base, true}}
	return c, nil
}

// prepare adds the settings of this package to a configuration.
func (c *Client) prepare(config *rest.Config, version string) {
	config.UserAgent = "kubecdc/" + version
	config.DisableCompression = true
	config.QPS, config.RateLimiter = -1, nil
	config.Timeout = 0
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return leaveOutText(&transport{next, c.skew}) })
	config.ContentConfig = rest.ContentConfig{
		ContentType: "application/json", AcceptContentTypes: "application/json", NegotiatedSerializer: statusNegotiator,
	}
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: RequestTimeout, KeepAlive: RequestTimeout}).DialContext // as client-go does
	}
	config.Dial = coalesceReads(config.Dial)
}

// Refresh reads the credentials again if they were not read within LookInterval, and returns the reason why they cannot be
// read. loaded differs after each change.
func (c *Client) Refresh() (loaded any, err error) {
	err = c.credentials.look(LookInterval)
	return c.credentials.current.Load(), err
}

// RESTConfig returns a configuration for other clients, with the credentials of this one and connections beside those of
// its watches.
func (c *Client) RESTConfig() *rest.Config {
	return &rest.Config{Host: c.config.Host, Transport: c.fresh.Transport, UserAgent: c.config.UserAgent}
}

// ClockSkew returns by how much this machine's clock was ahead of the API server's at its last response, to the second. It
// is negative if the clock was behind, and 0 before the first response.
func (c *Client) ClockSkew() time.Duration { return time.Duration(c.skew.Load()) }

// Host returns the address of the API server, for messages.
func (c *Client) Host() string { return c.credentials.current.Load().config.Host }

// Close closes idle connections.
func (c *Client) Close() { c.credentials.current.Load().close() }

// REST returns a client for the requests of one group and version. It shares the connections of c.
func (c *Client) REST(gv schema.GroupVersion) (rest.Interface, error) {
	return c.restClient(c.http, gv, c.config.AcceptContentTypes)
}

func (c *Client) restClient(connections *http.Client, gv schema.GroupVersion, accept string) (rest.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.AcceptContentTypes = accept
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	client, err := rest.RESTClientForConfigAndClient(config, connections)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", gv, err)
	}
	return client, nil
}

// Metrics returns the API server's own metrics in the Prometheus text format. Each call uses its own connection, so that
// behind a load balancer each call may reach another API server. The caller closes the body.
func (c *Client) Metrics(ctx context.Context) (io.ReadCloser, error) {
	client, err := c.restClient(c.fresh, schema.GroupVersion{Version: "v1"}, "text/plain")
	if err != nil {
		return nil, err
	}
	return client.Get().AbsPath("/metrics").MaxRetries(0).Stream(ctx)
}

// ListText lists a resource of the whole cluster, as JSON; with a name, that object alone. The list is as new as the
// request, and not an older state of a cache. It tries once.
func (c *Client) ListText(ctx context.Context, group, version, resource, name string) ([]byte, error) {
	client, err := c.REST(schema.GroupVersion{Group: group, Version: version})
	if err != nil {
		return nil, err
	}
	r := client.Get().Resource(resource).MaxRetries(0).Timeout(RequestTimeout)
	if name != "" {
		r = r.Param("fieldSelector", "metadata.name="+name)
	}
	return bodyOf(r.Do(ctx))
}

// Definition returns the CustomResourceDefinition of a type as etcd has it, and not an older state of a cache, or only its
// metadata. The error is NotServed for Classify if the type has none. It tries once.
func (c *Client) Definition(ctx context.Context, r event.Resource, metadataOnly bool) ([]byte, error) {
	client, err := c.REST(schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"})
	if err != nil {
		return nil, err
	}
	request := client.Get().Resource("customresourcedefinitions").Name(r.String()).MaxRetries(0).Timeout(RequestTimeout)
	if metadataOnly {
		request.SetHeader("Accept", acceptMetadata)
	}
	return bodyOf(request.Do(ctx))
}

// bodyOf returns the body of an answer. Its error is more detailed than that of Raw.
func bodyOf(answer rest.Result) ([]byte, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	return answer.Raw()
}

// OpenAPI returns the OpenAPI v3 document of one group and version, and its ETag. If that is known, the document is nil. The
// error is NotServed for Classify if there is no document. It tries once.
func (c *Client) OpenAPI(ctx context.Context, group, version, known string) (document []byte, tag string, err error) {
	gv := schema.GroupVersion{Group: group, Version: version}
	client, err := c.REST(gv)
	if err != nil {
		return nil, "", err
	}
	path := "/openapi/v3/apis/" + gv.String()
	if group == "" {
		path = "/openapi/v3/api/" + version
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, client.Get().AbsPath(path).URL().String(), nil)
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Accept", "application/json")
	if known != "" {
		request.Header.Set("If-None-Match", known)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		document, err = io.ReadAll(response.Body)
		return document, response.Header.Get("ETag"), err
	case http.StatusNotModified:
		return nil, known, nil
	}
	return nil, "", apierrors.NewGenericServerResponse(response.StatusCode, http.MethodGet, schema.GroupResource{}, path, "", 0, true)
}

// ClusterUID returns the UID of the namespace kube-system, which is as old as the cluster and the closest thing to a name
// that every cluster has. It tries once.
func (c *Client) ClusterUID(ctx context.Context) (string, error) {
	e, body, err := c.getNamespace(ctx, metav1.NamespaceSystem)
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

// HasNamespace reports whether a namespace exists. It tries once. Without the right to get the namespace, the error is
// Forbidden for Classify, whether the namespace exists or not.
func (c *Client) HasNamespace(ctx context.Context, name string) (bool, error) {
	_, _, err := c.getNamespace(ctx, name)
	if Classify(err) == NotServed {
		return false, nil
	}
	return err == nil, err
}

// NamespaceNames returns the names of all namespaces, from the API server's cache. It tries once.
func (c *Client) NamespaceNames(ctx context.Context) (names []string, err error) {
	e, err := c.Endpoint(selection.Scope{
		Resource: event.Resource{Version: "v1", Resource: "namespaces", Kind: "Namespace"}, MetadataOnly: true,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	_, err = e.List(ctx, nil, metav1.ListOptions{ResourceVersion: "0"}, nil, func(o *deltas.Object) error {
		names = append(names, o.Name)
		return nil
	})
	return names, err
}

// getNamespace gets a namespace, and returns an endpoint with a decoder for the body.
func (c *Client) getNamespace(ctx context.Context, name string) (*Endpoint, []byte, error) {
	e, err := c.Endpoint(selection.Scope{Resource: event.Resource{Version: "v1", Resource: "namespaces", Kind: "Namespace"}})
	if err != nil {
		return nil, nil, err
	}
	body, err := bodyOf(e.client.Get().Resource("namespaces").Name(name).MaxRetries(0).Timeout(RequestTimeout).Do(ctx))
	return e, body, err
}

// SlowAfter is how long a response may take to begin before it is reported as slow and the slot is released to others.
const SlowAfter = 10 * time.Second

var (
	// ErrSlow is the failure that OnSlow stands for.
	ErrSlow     = fmt.Errorf("the API server has not answered for %s", SlowAfter)
	errNoAnswer = fmt.Errorf("the API server has not answered for %s", HeadersTimeout)
)

// Slot is the right of one scope to read all its objects, which a bounded number of scopes have at a time. It is released
// while the API server keeps a request waiting, and while what was read waits for long: a type that cannot go on does not
// block the lists of others. A nil slot bounds nothing. It is used by one goroutine at a time; the mutex guards against the
// timer.
type Slot struct {
	Pool   chan struct{} // has one element for each held slot; nil for no bound
	OnSlow func()        // called when a response is slow; must not block; may be nil

	mu   sync.Mutex
	held bool
}

// Acquire waits for a free slot, unless one is held.
func (s *Slot) Acquire(ctx context.Context) error {
	if s == nil || s.Pool == nil || s.held {
		return nil
	}
	select {
	case s.Pool <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
	return nil
}

// Release releases the slot, if it is held.
func (s *Slot) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

// releaseLocked is Release. Requires s.mu.
func (s *Slot) releaseLocked() {
	if s.held {
		<-s.Pool
		s.held = false
	}
}

// Await runs wait and returns its error. If that takes longer than SlowAfter the slot is released, and has to be acquired
// again before more is read.
func (s *Slot) Await(wait func() error) error {
	if s == nil {
		return wait()
	}
	defer s.beginWait(nil)()
	return wait()
}

// beginRequest starts the timer of a request. done stops it.
func (s *Slot) beginRequest() (done func()) {
	if s == nil {
		return func() {}
	}
	return s.beginWait(s.OnSlow)
}

// beginWait starts the timer of a wait. done stops it.
func (s *Slot) beginWait(onSlow func()) (done func()) {
	waiting := true
	late := time.AfterFunc(SlowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !waiting {
			return
		}
		if s.releaseLocked(); onSlow != nil {
			onSlow()
		}
	})
	return func() {
		late.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		waiting = false
	}
}
