package apiserver

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

const (
	// HeadersTimeout bounds the wait for the begin of a response, and for each further part of a list. An API server that
	// cannot fill its cache holds requests for half a minute and more before it answers with an error; one that hangs never
	// answers.
	HeadersTimeout = time.Minute
	// The API server ends each watch after a random time in this range, so that rights are checked again and load spreads
	// over API servers. client-go's Reflector uses the same range.
	minWatchTime, maxWatchTime = 5 * time.Minute, 10 * time.Minute
	// watchGrace is how long a watch may outlive that time before the client ends it: either the connection is dead, or the
	// journal was blocked for so long that the end was not read.
	watchGrace = 30 * time.Second
)

// Endpoint lists and watches one scope. Each call is one request: the caller decides whether to retry, and reports failures
// in the state of the scope. It is safe for concurrent use.
type Endpoint struct {
	Scope selection.Scope
	// BeginRequest, if not nil, is called before each request, and verify when its response has begun and nothing of it has
	// been read. The error of verify ends the request. It keeps the slot, so it should not take longer than SlowAfter. Set
	// before use.
	BeginRequest func(selection.Scope) (verify func(context.Context) error)
	Ways         *Ways // of the resource

	client  rest.Interface
	fresh   rest.Interface // see Client
	decoder *decode.Decoder
}

// Endpoint returns the endpoint of a scope. It sends no request.
func (c *Client) Endpoint(s selection.Scope) (*Endpoint, error) {
	gv, accept := schema.GroupVersion{Group: s.Resource.Group, Version: s.Resource.Version}, c.config.AcceptContentTypes
	client, err := c.restClient(c.http, gv, accept)
	if err != nil {
		return nil, err
	}
	afresh, err := c.restClient(c.fresh, gv, accept)
	return &Endpoint{Scope: s, client: client, fresh: afresh, decoder: decode.New(s.Resource, s.MetadataOnly), Ways: c.ways.waysOf(s.Resource)}, err
}

// DecodeErrors returns the number of unparseable responses.
func (e *Endpoint) DecodeErrors() uint64 { return e.decoder.Failures() }

// newRequest is the only place where the options of a scope become a request: every list and watch has all of them.
func (e *Endpoint) newRequest(client rest.Interface, o metav1.ListOptions) *rest.Request {
	o.LabelSelector = e.Scope.LabelSelector
	if o.FieldSelector == "" {
		o.FieldSelector = e.Scope.FieldSelector
	}
	r := client.Get().
		NamespaceIfScoped(e.Scope.Namespace, e.Scope.Namespace != "").
		Resource(e.Scope.Resource.Resource).
		SpecificallyVersionedParams(&o, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"}).
		MaxRetries(0)
	switch {
	case e.Scope.MetadataOnly && o.Watch:
		r.SetHeader("Accept", acceptMetadata)
	case e.Scope.MetadataOnly:
		r.SetHeader("Accept", acceptMetadataList)
	}
	return r
}

// responseBody is the body of a response; closing it ends the request. Each wait for data is bounded: after SlowAfter the
// slot is released, and after HeadersTimeout the request is canceled. slot may be nil.
type responseBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	slot   *Slot
}

// awaitAnswer runs answer, which waits for data, within those bounds.
func (b *responseBody) awaitAnswer(answer func() error) error {
	late := time.AfterFunc(HeadersTimeout, func() { b.cancel(errNoAnswer) })
	done := b.slot.beginRequest()
	err := answer()
	done()
	if !late.Stop() && errors.Is(context.Cause(b.ctx), errNoAnswer) {
		return errNoAnswer
	}
	if err == nil {
		err = b.slot.Acquire(b.ctx) // it may have been released as slow
	}
	return err
}

func (b *responseBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// sendRequest sends a request and returns the body of the response. The caller closes it.
func (e *Endpoint) sendRequest(ctx context.Context, s *Slot, verb string, r *rest.Request) (*responseBody, error) {
	verify := func(context.Context) error { return nil }
	if e.BeginRequest != nil {
		verify = e.BeginRequest(e.Scope)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	b := &responseBody{ctx: ctx, cancel: cancel, slot: s}
	err := b.awaitAnswer(func() (err error) {
		b.ReadCloser, err = r.Stream(ctx)
		return err
	})
	if err == nil {
		err = verify(ctx)
	}
	if err != nil {
		cancel(nil)
		if b.ReadCloser != nil {
			_ = b.ReadCloser.Close() // discarded unread
		}
		return nil, wrapDenied(verb, err)
	}
	return b, nil
}

// listBody is the body of a list. A server that stops in the middle of a list is treated like one that does not answer. On a
// watch, silence is normal.
type listBody struct{ *responseBody }

func (b listBody) Read(p []byte) (n int, err error) {
	err = b.awaitAnswer(func() (err error) {
		n, err = b.responseBody.Read(p)
		return err
	})
	return n, err
}

// List reads a list, or a page of one, see [decode.Decoder.List]. Errors are those of the API server, of begin and of take.
func (e *Endpoint) List(
	ctx context.Context, s *Slot, o metav1.ListOptions, begin func(metav1.ListMeta) error, take func(*deltas.Object) error,
) (metav1.ListMeta, error) {
	body, err := e.sendRequest(ctx, s, "list", e.newRequest(e.client, o))
	if err != nil {
		return metav1.ListMeta{}, err
	}
	defer body.Close()
	return e.decoder.List(listBody{body}, begin, take)
}

// Sample lists at most limit objects of the scope and calls visit with each, as JSON without metadata.managedFields.
func (e *Endpoint) Sample(ctx context.Context, limit int64, visit func(object []byte)) error {
	_, err := e.List(ctx, nil, metav1.ListOptions{Limit: limit}, nil, func(o *deltas.Object) error {
		if e.Scope.Filter == nil || e.Scope.Filter(o.Namespace) {
			visit(o.Raw)
		}
		return nil
	})
	return err
}

// ReadAt returns an object of the scope in its state at a resourceVersion, by a list that has it alone; nil if it did not
// exist, or if the API server does not list at that version and has another state. Object versions tell the two apart.
func (e *Endpoint) ReadAt(ctx context.Context, namespace, name, at string) (found *deltas.Object, err error) {
	one := *e
	one.Scope.Namespace = namespace // the API server reads one key only if the path has its namespace
	_, err = one.List(ctx, nil, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		ResourceVersion: at, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}, nil, func(o *deltas.Object) error {
		found = o
		return nil
	})
	return found, err
}

// Newest returns etcd's current resourceVersion, by a LIST of one object, or of everything where there are no pages.
func (e *Endpoint) Newest(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	ignore := func(*deltas.Object) error { return nil }
	var refusal error
	if e.Ways.Has(Pages) {
		meta, err := e.List(ctx, nil, metav1.ListOptions{Limit: 1}, nil, ignore)
		if refusal = err; !IsRefusal(err) {
			if meta.Continue != "" {
				e.Ways.Learn(Pages, nil)
			}
			return meta.ResourceVersion, err
		}
	}
	meta, err := e.List(ctx, nil, metav1.ListOptions{}, nil, ignore)
	if err == nil && refusal != nil {
		e.Ways.Learn(Pages, refusal)
	}
	return meta.ResourceVersion, err
}

// Watch opens a watch that ends after o.TimeoutSeconds, or after a random time if that is nil. The caller stops the
// connection.
func (e *Endpoint) Watch(ctx context.Context, s *Slot, o metav1.ListOptions) (*Connection, error) {
	return e.openWatch(ctx, s, o, func(o metav1.ListOptions) *rest.Request { return e.newRequest(e.client, o) })
}

// WatchOnNewConnection is Watch on a connection of its own, which may reach another API server.
func (e *Endpoint) WatchOnNewConnection(ctx context.Context, s *Slot, o metav1.ListOptions) (*Connection, error) {
	return e.openWatch(ctx, s, o, func(o metav1.ListOptions) *rest.Request {
		return e.newRequest(e.fresh, o).SetHeader("Connection", "close")
	})
}

func (e *Endpoint) openWatch(
	ctx context.Context, s *Slot, o metav1.ListOptions, request func(metav1.ListOptions) *rest.Request,
) (*Connection, error) {
	o.Watch, o.AllowWatchBookmarks = true, true
	if o.TimeoutSeconds == nil {
		seconds := int64((minWatchTime + rand.N(maxWatchTime-minWatchTime)) / time.Second)
		o.TimeoutSeconds = &seconds
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+watchGrace, decode.ErrEnd)
	body, err := e.sendRequest(ctx, s, "watch", request(o))
	if err != nil {
		cancel()
		return nil, err
	}
	return newConnection(ctx, cancel, body, e.decoder), nil
}
