package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/condition"
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

// Verdict is what a failure means for the history of a scope.
type Verdict int

// The verdicts.
const (
	// Interrupted: retry from the same position. Every failure without a more specific verdict.
	Interrupted Verdict = iota
	// Expired: the API server no longer has the history after the position (410).
	Expired
	// TooLarge: the API server has not reached the position. It lags behind, or etcd was restored from a backup.
	TooLarge
	// Refused: the API server does not support this kind of request; another kind may work.
	Refused
	// Unauthenticated: the API server does not accept the credentials (401).
	Unauthenticated
	// Forbidden: the program has no right to do this (403).
	Forbidden
	// NotServed: the resource is not served, or no longer (404).
	NotServed
	// Starting: the API server is filling its cache of this resource, as it does at its start and after a definition is
	// established.
	Starting
)

// initializingMessage is the error of the API server's cache until it is filled, with status 429; before Kubernetes 1.29
// also with 500. With a suffix (": …") it reports why the cache cannot be filled, which is not a start.
const initializingMessage = "storage is (re)initializing"

// Classify returns the verdict for an error of this package; nil is Interrupted.
func Classify(err error) Verdict {
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return Expired
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return TooLarge
	case apierrors.IsUnauthorized(err):
		return Unauthenticated
	case apierrors.IsForbidden(err):
		return Forbidden
	case apierrors.IsNotFound(err):
		return NotServed
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		switch status.Status().Code {
		case http.StatusTooManyRequests, http.StatusInternalServerError:
			message := status.Status().Message
			if strings.Contains(message, initializingMessage) && !strings.Contains(message, initializingMessage+": ") {
				return Starting
			}
		case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
			http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
			return Refused
		}
	}
	return Interrupted
}

// IsRefusal reports whether a server answers a kind of request with an error, so that another kind may work: one that does
// not support it may say so with any status but those that have a meaning of their own.
func IsRefusal(err error) bool {
	var status apierrors.APIStatus
	v := Classify(err)
	return v == Refused || v == Interrupted && errors.As(err, &status) && !IsUnanswered(err) && !apierrors.IsTooManyRequests(err)
}

// IsUnanswered reports whether a request failed because the API server gave no response, or a proxy or load balancer gave
// one for it.
func IsUnanswered(err error) bool {
	var u *url.Error
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		return code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout
	}
	return errors.As(err, &u) || errors.As(err, new(*lostError)) || errors.Is(err, ErrSlow) || errors.Is(err, errNoAnswer)
}

// Reason returns the message of an error without the URL: the scope in the status describes the request better.
func Reason(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}

// Problem returns what an error says about the API server as a whole: that it cannot be reached, does not accept the
// certificate or the credentials, or has too much to do. The zero value means that it answers other requests.
func (c *Client) Problem(err error) condition.Problem {
	host := c.Host()
	var status apierrors.APIStatus
	var code int32
	if errors.As(err, &status) {
		code = status.Status().Code
	}
	p := condition.Problem{}
	switch {
	case Classify(err) == Unauthenticated, strings.HasPrefix(Reason(err), "getting credentials: "): // of the program of the kubeconfig
		return condition.Problem{Code: condition.CredentialsRefused, Cause: Reason(err)}
	case code == http.StatusBadRequest && strings.Contains(err.Error(), "HTTP request to an HTTPS server"):
		p = peer(false).Problem(tls.RecordHeaderError{Msg: "it answers 400"})
	case code == http.StatusTooManyRequests && Classify(err) != Starting, code == http.StatusServiceUnavailable && !isServiceAway(status):
		return condition.Problem{
			Code: condition.APIServerBusy, Cause: fmt.Sprintf("the API server answers %d: %s", code, Reason(err)),
			Remedy: "look at the load of the API server at " + host + ", and at the priority and fairness of this account's requests (flow schemas)",
		}
	case code == http.StatusServiceUnavailable, !IsUnanswered(err):
		return p
	case code != 0:
		p = condition.Problem{Code: condition.APIServerUnreachable, Cause: fmt.Sprintf("a proxy answers %d in its place", code)}
	default:
		p = peer(!strings.HasPrefix(host, "http:")).Problem(err)
	}
	if p.Code == condition.APIServerUnreachable {
		p.Remedy = "look at the API server at " + host + ": " + cmp.Or(p.Remedy, "whether it runs, its load, and proxies before it")
	}
	return p
}

// peer is what the client connects to, with TLS or without.
func peer(secure bool) condition.Peer {
	p := condition.Peer{Address: "the kubeconfig", Settings: "the kubeconfig", Secure: secure, Other: "write https:// in the kubeconfig", APIServer: true}
	if secure {
		p.Other = "write http:// in the kubeconfig, if it is to be read in cleartext"
	}
	return p
}

// isServiceAway reports whether the API server answers that the server of an APIService is away: it has no load itself.
func isServiceAway(answer apierrors.APIStatus) bool {
	status := answer.Status()
	away := strings.Contains(status.Message, "error trying to reach service") || strings.HasPrefix(status.Message, "service unavailable")
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			away = away || strings.TrimSpace(cause.Message) == "service unavailable"
		}
	}
	return away
}

// DeniedError is a 403, with the verb of the request.
type DeniedError struct {
	Verb string
	Err  error
}

// Error describes the missing right, without the object of the request, which may not exist.
func (e *DeniedError) Error() string { return e.Verb + " is forbidden: " + WithoutObject(e.Err) }
func (e *DeniedError) Unwrap() error { return e.Err }

// WithoutObject returns the API server's message for a refusal, without the name of the object.
func WithoutObject(err error) string {
	text := err.Error()
	if _, missing, found := strings.Cut(text, " is forbidden: "); found {
		return missing
	}
	return text
}

// wrapDenied adds the verb to a 403 and returns other errors as they are.
func wrapDenied(verb string, err error) error {
	if Classify(err) != Forbidden {
		return err
	}
	return &DeniedError{verb, err}
}
