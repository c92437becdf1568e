package involved

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Config holds the dependencies of an Index.
type Config struct {
	Client *apiserver.Client
	Rules  []selection.Rule
	// Redact returns an object, of which only metadata is read, as it may leave.
	Redact func(event.Resource, *deltas.Object) ([]byte, error)
	// BeginRequest decides when what is read of the type of a rule may leave, see [apiserver.Endpoint].
	BeginRequest func(selection.Scope) (verify func(context.Context) error)
}

// Index knows the objects that Events are about. It is safe for concurrent use.
type Index struct {
	cfg     Config
	owner   func(event.Resource) (rule int, owned bool)
	running sync.WaitGroup
	start   func(func(context.Context)) // set by Start

	mu         sync.Mutex
	catalog    selection.Catalog
	discovered time.Time
	types      map[typeKey]*objects
}

// typeKey names the objects of one type, in one namespace or, if that is "", in all, and what is kept of them.
type typeKey struct {
	schema.GroupKind
	namespace string
	wanted    selection.InvolvedObject
}

// discoverEvery bounds how often a kind that is not served is looked for.
const discoverEvery = 30 * time.Second

// New returns an index.
func New(cfg Config) *Index {
	return &Index{cfg: cfg, owner: selection.Owners(cfg.Rules), types: map[typeKey]*objects{}}
}

// Start allows watches, which begin when an Event names their kind; stop ends them. Nothing is appended before it.
func (x *Index) Start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	x.start = func(f func(context.Context)) { x.running.Go(func() { f(ctx) }) }
	return func() {
		cancel()
		x.running.Wait()
	}
}

// WrapAppend returns an AppendFunc for the scopes of a rule, which completes Events and passes them to to.
func (x *Index) WrapAppend(rule int, to event.AppendFunc) event.AppendFunc {
	r := x.cfg.Rules[rule]
	if r.InvolvedObject == (selection.InvolvedObject{}) {
		return to
	}
	return func(ctx context.Context, o event.Observation) (err error) {
		if !selection.IsEvents(o.Resource) {
			return to(ctx, o)
		}
		for _, c := range o.Changes {
			if c.After, err = x.complete(ctx, r, o.Resource, c.After, c.ResourceVersion, c.ObservedAt); err != nil {
				return err
			}
		}
		for i := range o.Bodies {
			b := &o.Bodies[i]
			if b.Raw, err = x.complete(ctx, r, o.Resource, b.Raw, b.ResourceVersion, time.Time{}); err != nil {
				return err
			}
		}
		return to(ctx, o)
	}
}

// complete returns an Event, which was read at some time, with what its object had. Its error is that of ctx.
func (x *Index) complete(
	ctx context.Context, r selection.Rule, events event.Resource, body []byte, version string, read time.Time,
) ([]byte, error) {
	a, ok := parseAbout(body, version)
	if !ok {
		return body, nil
	}
	a.read = read
	of, reason := x.objectsOf(ctx, &a, r, events)
	if of == nil {
		return a.withReason(reason), ctx.Err()
	}
	text, reason, err := of.find(ctx, &a)
	if reason != "" {
		return a.withReason(reason), err
	}
	return a.with(text), err
}

// objectsOf returns the objects of the type that an Event names, or why there are none, and begins to watch them: in single
// namespaces if the rule reads its Events so.
func (x *Index) objectsOf(ctx context.Context, a *about, r selection.Rule, events event.Resource) (of *objects, reason string) {
	gv, err := schema.ParseGroupVersion(a.APIVersion)
	if err != nil || a.Kind == "" || a.Name == "" {
		return nil, "the Event names no object"
	}
	key := typeKey{GroupKind: schema.GroupKind{Group: gv.Group, Kind: a.Kind}, wanted: r.InvolvedObject}
	named := selection.Scope{Resource: events, Namespaced: true, MetadataOnly: true}
	if r.Namespaces.Names() != nil { // Events of objects without a namespace are in default
		key.namespace, named.Namespace = a.Namespace, cmp.Or(a.Namespace, metav1.NamespaceDefault)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if of := x.types[key]; of != nil {
		return of, ""
	}
	served, reason := x.findKind(ctx, key.GroupKind, a.APIVersion)
	if reason != "" {
		return nil, reason
	}
	rule, owned := x.owner(served.Resource)
	of = &objects{Index: x, since: time.Now(), broken: "they are still being read"}
	of.textOf = func(o *deltas.Object) (string, error) { return x.textOf(served.Resource, o, key.wanted) }
	scope := selection.Scope{
		Resource: served.Resource, Rule: rule, Namespaced: served.Namespaced, Namespace: key.namespace, MetadataOnly: true,
	}
	if of.endpoint, err = x.cfg.Client.Endpoint(scope); err == nil {
		of.events, err = x.cfg.Client.Endpoint(named)
	}
	if err != nil {
		return nil, err.Error()
	}
	if owned {
		of.endpoint.BeginRequest = x.cfg.BeginRequest
	}
	x.types[key] = of
	x.start(of.run)
	return of, ""
}

// findKind returns the resource of a kind, or why there is none. Without a version the group is not known.
func (x *Index) findKind(ctx context.Context, kind schema.GroupKind, apiVersion string) (selection.Served, string) {
	served, ok := x.catalog.OfKind(kind.Group, kind.Kind, apiVersion != "")
	if !ok && time.Since(x.discovered) > discoverEvery {
		catalog, _, err := x.cfg.Client.Discover(ctx, x.catalog)
		if err != nil {
			return served, "discovery failed: " + apiserver.Reason(err)
		}
		x.catalog, x.discovered = catalog, time.Now()
		served, ok = x.catalog.OfKind(kind.Group, kind.Kind, apiVersion != "")
	}
	switch {
	case !ok:
		return served, fmt.Sprintf("the API server serves no kind %q of %q", kind.Kind, apiVersion)
	case served.Unwatchable:
		return served, served.Resource.String() + " cannot be watched"
	}
	return served, ""
}

// owner is the controller of an object.
type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// textOf returns what Events get of an object.
func (x *Index) textOf(resource event.Resource, o *deltas.Object, wanted selection.InvolvedObject) (string, error) {
	raw, err := x.cfg.Redact(resource, o)
	if err != nil {
		return "", err
	}
	var object struct {
		Metadata struct {
			Labels, Annotations json.RawMessage
			OwnerReferences     []struct {
				owner
				Controller bool
			}
		}
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return "", err
	}
	var text strings.Builder
	if m := object.Metadata.Labels; wanted.Labels && len(m) > 0 {
		text.WriteString(`,"labels":` + string(m))
	}
	if m := object.Metadata.Annotations; wanted.Annotations && len(m) > 0 {
		text.WriteString(`,"annotations":` + string(m))
	}
	for _, r := range object.Metadata.OwnerReferences {
		if controller, err := json.Marshal(r.owner); err == nil && wanted.Owner && r.Controller {
			text.WriteString(`,"owner":` + string(controller))
		}
	}
	return text.String(), nil
}

// reference is what an Event says of the object that it is about.
type reference struct{ APIVersion, Kind, Namespace, Name, UID string }

// names reports whether the object may have this uid. The kubelet writes the name of its Node for it.
func (r reference) names(uid string) bool { return r.UID == "" || r.UID == uid || r.UID == r.Name }

// about is an Event that names its object.
type about struct {
	reference
	version string    // resourceVersion of the Event
	created string    // when the Event was created, by the clock of the API server
	read    time.Time // when it was read: what is read together waits together

	body       []byte
	start, end int // of the reference within the body; end is its closing brace
}

// parseAbout finds the reference in an Event: involvedObject in the core group, regarding in events.k8s.io.
func parseAbout(body []byte, version string) (a about, ok bool) {
	a.body, a.version = body, version
	m := rawjson.EnterObject(body, rawjson.SkipSpace(body, 0))
	for m.Next() {
		start := m.I
		if m.I = rawjson.SkipTrustedValue(body, start); m.I < 0 || body[start] != '{' {
			continue
		}
		switch string(m.Key) {
		case "involvedObject", "regarding":
			a.start, a.end = start, m.I-1
			ok = json.Unmarshal(body[start:m.I], &a.reference) == nil
		case "metadata":
			var of struct{ CreationTimestamp string }
			if json.Unmarshal(body[start:m.I], &of) == nil {
				a.created = of.CreationTimestamp
			}
		}
	}
	return a, ok && m.I >= 0
}

// with returns the Event with further members in the reference, each with a comma before it.
func (a *about) with(members string) []byte {
	if rawjson.SkipSpace(a.body, a.start+1) == a.end {
		members = strings.TrimPrefix(members, ",")
	}
	return slices.Concat(a.body[:a.end], []byte(members), a.body[a.end:])
}

// withReason returns the Event with the reason why nothing is known of its object.
func (a *about) withReason(reason string) []byte {
	text, err := json.Marshal(reason)
	if err != nil {
		return a.body // impossible: a string has a JSON form
	}
	return a.with(`,"unknown":` + string(text))
}

// Remove returns an Event without what the package has added, in place of which it puts the reason, if there is one.
func Remove(body []byte, reason string) []byte {
	a, ok := parseAbout(body, "")
	if !ok {
		return body
	}
	first := a.end
	for m := rawjson.EnterObject(body, a.start); m.Next(); m.I = rawjson.SkipTrustedValue(body, m.I) {
		switch string(m.Key) {
		case "labels", "annotations", "owner", "unknown": // they stand last
			first = min(first, max(m.Comma, a.start+1))
		}
	}
	if first == a.end {
		return body
	}
	a.body, a.end = slices.Concat(body[:first], body[a.end:]), first
	if reason == "" {
		return a.body
	}
	return a.withReason(reason)
}
