package involved

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Config holds the dependencies of an Index. All but BeginRequest are required.
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
	cfg    Config
	owner  func(event.Resource) (rule int, owned bool)
	wanted selection.InvolvedObject // of any rule

	running sync.WaitGroup
	start   func(func(context.Context)) // set by Start

	mu         sync.Mutex
	catalog    selection.Catalog
	discovered time.Time
	failure    error // of the last discovery
	types      map[typeKey]*objects
}

// typeKey names the objects of one type, in one namespace or, if that is "", in all.
type typeKey struct{ group, kind, namespace string }

// discoverEvery bounds how often a kind that is not served is looked for.
const discoverEvery = 30 * time.Second

// New returns an index, or nil if none of the rules asks for the objects of Events.
func New(cfg Config) *Index {
	x := &Index{cfg: cfg, owner: selection.Owners(cfg.Rules), types: map[typeKey]*objects{}}
	for _, r := range cfg.Rules {
		x.wanted.Labels = x.wanted.Labels || r.InvolvedObject.Labels
		x.wanted.Annotations = x.wanted.Annotations || r.InvolvedObject.Annotations
		x.wanted.Owner = x.wanted.Owner || r.InvolvedObject.Owner
	}
	if x.wanted == (selection.InvolvedObject{}) {
		return nil
	}
	return x
}

// Start allows watches, which begin when an Event names their kind. stop ends them. It is called before WrapAppend's functions.
func (x *Index) Start(ctx context.Context) (stop func()) {
	if x == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	x.start = func(f func(context.Context)) { x.running.Go(func() { f(ctx) }) }
	return func() {
		cancel()
		x.running.Wait()
	}
}

// WrapAppend returns an AppendFunc for the scopes of a rule, which completes Events and passes them to to.
func (x *Index) WrapAppend(r selection.Rule, to event.AppendFunc) event.AppendFunc {
	if r.InvolvedObject == (selection.InvolvedObject{}) {
		return to
	}
	return func(ctx context.Context, o event.Observation) error {
		if !selection.IsEvents(o.Resource) {
			return to(ctx, o)
		}
		for _, c := range o.Changes {
			if err := x.complete(ctx, r, o.Resource, &c.After, c.ResourceVersion, c.ObservedAt); err != nil {
				return err
			}
		}
		for i := range o.Bodies {
			b := &o.Bodies[i]
			if err := x.complete(ctx, r, o.Resource, &b.Raw, b.ResourceVersion, time.Now()); err != nil {
				return err
			}
		}
		return to(ctx, o)
	}
}

// complete adds to an Event what its object had.
func (x *Index) complete(
	ctx context.Context, r selection.Rule, events event.Resource, body *[]byte, version string, read time.Time,
) error {
	if len(*body) == 0 {
		return nil
	}
	a, ok := parseAbout(*body)
	if !ok {
		return nil
	}
	a.version, a.read = version, read
	of, reason := x.objectsOf(ctx, &a, events, r.Namespaces.Names() != nil)
	if of == nil {
		*body = a.withReason(reason)
		return ctx.Err()
	}
	m, reason, err := of.find(ctx, &a)
	switch {
	case err != nil:
		return err
	case reason != "":
		*body = a.withReason(reason)
		return nil
	}
	var text strings.Builder
	for _, one := range []struct {
		asked bool
		text  string
	}{{r.InvolvedObject.Labels, m.labels}, {r.InvolvedObject.Annotations, m.annotations}, {r.InvolvedObject.Owner, m.owner}} {
		if one.asked {
			text.WriteString(one.text)
		}
	}
	*body = a.with(text.String())
	return nil
}

// objectsOf returns the objects of the type that an Event names, or why there are none. It begins to watch them. If namespaced,
// the rule reads single namespaces, and so does this.
func (x *Index) objectsOf(ctx context.Context, a *about, by event.Resource, namespaced bool) (*objects, string) {
	if a.kind == "" || a.name == "" {
		return nil, "the Event names no object"
	}
	group, _, found := strings.Cut(a.apiVersion, "/")
	if !found {
		group = ""
	}
	key := typeKey{group: group, kind: a.kind}
	if namespaced {
		key.namespace = a.namespace // "" for an object without one
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if of := x.types[key]; of != nil {
		return of, ""
	}
	served, ok := x.catalog.OfKind(group, a.kind, a.apiVersion != "")
	if !ok && time.Since(x.discovered) > discoverEvery {
		x.discovered = time.Now()
		if catalog, _, err := x.cfg.Client.Discover(ctx, x.catalog); err != nil {
			x.failure = err
		} else {
			x.catalog, x.failure = catalog, nil
		}
		served, ok = x.catalog.OfKind(group, a.kind, a.apiVersion != "")
	}
	switch {
	case !ok && x.failure != nil:
		return nil, "discovery failed: " + apiserver.Reason(x.failure)
	case !ok:
		return nil, fmt.Sprintf("the API server serves no kind %q of %q", a.kind, a.apiVersion)
	case served.Unwatchable:
		return nil, served.Resource.String() + " cannot be watched"
	}
	rule, owned := x.owner(served.Resource)
	e, err := x.cfg.Client.Endpoint(selection.Scope{
		ID: served.Resource.String(), Resource: served.Resource, Rule: rule, Namespaced: served.Namespaced, Namespace: key.namespace,
		MetadataOnly: true,
	})
	if err != nil {
		return nil, err.Error()
	}
	if owned {
		e.BeginRequest = x.cfg.BeginRequest
	}
	named := selection.Scope{ID: by.String(), Resource: by, Namespaced: true, MetadataOnly: true}
	if namespaced { // Events of objects without a namespace are in default
		named.Namespace = cmp.Or(a.namespace, metav1.NamespaceDefault)
	}
	events, err := x.cfg.Client.Endpoint(named)
	if err != nil {
		return nil, err.Error()
	}
	of := newObjects(e, events, func(o *deltas.Object) (members, error) { return x.read(served.Resource, o) })
	x.types[key] = of
	x.start(of.run)
	return of, ""
}

// read returns what Events may get of an object.
func (x *Index) read(resource event.Resource, o *deltas.Object) (m members, err error) {
	raw, err := x.cfg.Redact(resource, o)
	if err != nil {
		return m, err
	}
	var object metadata
	if err := json.Unmarshal(raw, &object); err != nil {
		return m, err
	}
	if x.wanted.Labels && len(object.Metadata.Labels) > 0 {
		m.labels = `,"labels":` + string(object.Metadata.Labels)
	}
	if x.wanted.Annotations && len(object.Metadata.Annotations) > 0 {
		m.annotations = `,"annotations":` + string(object.Metadata.Annotations)
	}
	for _, r := range object.Metadata.OwnerReferences {
		if x.wanted.Owner && r.Controller != nil && *r.Controller {
			text, err := json.Marshal(owner{r.APIVersion, r.Kind, r.Name, string(r.UID)})
			if err != nil {
				return m, err
			}
			m.owner = `,"owner":` + string(text)
		}
	}
	return m, nil
}

// metadata is what Events may get of an object.
type metadata struct {
	Metadata struct {
		Labels          json.RawMessage         `json:"labels"`
		Annotations     json.RawMessage         `json:"annotations"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
}

// owner is the controller of an object.
type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}
