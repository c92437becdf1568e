package source

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// option is a rule with some of the keys that a rule can have. Each selects a resource of its own, so that one Source reads
// all of them.
type option struct {
	keys string
	selection.Rule
	shape.Policy
	path    string // of the collection in a namespace; of the collection if cluster is set
	body    string // members of each object besides its metadata
	cluster bool   // the resource is not namespaced
	want    int    // objects in the table
}

// optionRules returns the rules of the options, with their filters.
func optionRules() (rules []selection.Rule) {
	for _, o := range options {
		rules = append(rules, o.WithFilter(o.Filter))
	}
	return rules
}

var (
	onlyA = selection.Namespaces{Include: []string{"eq-a"}}
	both  = selection.Namespaces{Include: []string{"eq-a", "eq-b"}}
)

// options hold every key of a rule. In each of two namespaces there are objects o0 to o4, of which three are red.
var options = []option{
	{keys: "select name, redact mask", path: "api/v1/secrets", body: `,"stringData":{"password":"0"}`, want: 10,
		Rule: selection.Rule{Select: []string{"secrets"}, Namespaces: selection.Namespaces{Include: []string{"eq-*"}}}},
	{keys: "select with version, before", path: "api/v1/podtemplates", want: 10,
		body: `,"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
		Rule: selection.Rule{Select: []string{"podtemplates.v1"}}, Policy: shape.Policy{Before: "full"}},
	{keys: "select wildcard, select exclude, fields.drop", path: "apis/networking.k8s.io/v1/networkpolicies", body: `,"spec":{"podSelector":{}}`, want: 10,
		Rule:   selection.Rule{Select: []string{"*.networking.k8s.io"}, Exclude: []string{"ipaddresses.networking.k8s.io", "servicecidrs.networking.k8s.io"}},
		Policy: shape.Policy{Fields: shape.Fields{Drop: []string{"metadata.annotations"}}}},
	{keys: "include name, changed paths", path: "api/v1/serviceaccounts", want: 5,
		Rule: selection.Rule{Select: []string{"serviceaccounts"}, Namespaces: onlyA}, Policy: shape.Policy{Changed: "paths"}},
	{keys: "include names, changed values", path: "api/v1/resourcequotas", want: 10,
		Rule: selection.Rule{Select: []string{"resourcequotas"}, Namespaces: both}, Policy: shape.Policy{Changed: "values"}},
	{keys: "include glob, exclude name, fields.keep", path: "api/v1/limitranges", want: 5,
		Rule:   selection.Rule{Select: []string{"limitranges"}, Namespaces: selection.Namespaces{Include: []string{"eq-*"}, Exclude: []string{"eq-b"}}},
		Policy: shape.Policy{Fields: shape.Fields{Keep: []string{"metadata.labels"}}}},
	{keys: "exclude, onlyIfChanged", path: "apis/policy/v1/poddisruptionbudgets", body: `,"spec":{}`, want: 5,
		Rule:   selection.Rule{Select: []string{"poddisruptionbudgets.policy"}, Namespaces: selection.Namespaces{Exclude: []string{"eq-b"}}},
		Policy: shape.Policy{OnlyIfChanged: []string{"metadata.labels"}}},
	{keys: "labelSelector, redactPaths", path: "apis/rbac.authorization.k8s.io/v1/roles", want: 6,
		Rule:   selection.Rule{Select: []string{"roles.rbac.authorization.k8s.io"}, LabelSelector: "color=red"},
		Policy: shape.Policy{RedactPaths: []string{"metadata.annotations.note"}}},
	{keys: "fieldSelector name, filter", path: "apis/apps/v1/controllerrevisions", body: `,"revision":1,"data":{"spec":1}`, want: 2,
		Rule:   selection.Rule{Select: []string{"controllerrevisions.apps"}, FieldSelector: "metadata.name=o2"},
		Policy: shape.Policy{Filter: `object.metadata.labels.color != "green"`}},
	{keys: "fieldSelector namespace, redact hmac", path: "api/v1/endpoints", want: 5,
		Rule:   selection.Rule{Select: []string{"endpoints"}, FieldSelector: "metadata.namespace=eq-a"},
		Policy: shape.Policy{Redact: "hmac", RedactPaths: []string{"metadata.annotations.note"}}},
	{keys: "fieldSelector namespace, labelSelector, capture metadata, ignoreChanges", path: "api/v1/configmaps", body: `,"data":{"large":"value"}`, want: 3,
		Rule:   selection.Rule{Select: []string{"configmaps"}, FieldSelector: "metadata.namespace=eq-a", LabelSelector: "color=red", Capture: selection.CaptureMetadata},
		Policy: shape.Policy{IgnoreChanges: []string{"metadata.annotations"}}},
	{keys: "capture metadata, redact drop", path: "apis/discovery.k8s.io/v1/endpointslices", body: `,"addressType":"IPv4","endpoints":[]`, want: 10,
		Rule:   selection.Rule{Select: []string{"endpointslices.discovery.k8s.io"}, Capture: selection.CaptureMetadata, Namespaces: both},
		Policy: shape.Policy{Redact: "drop", RedactPaths: []string{"metadata.annotations.note"}}},
	{keys: "cluster-scoped, labelSelector, changed paths", path: "apis/node.k8s.io/v1/runtimeclasses", body: `,"handler":"h"`, cluster: true, want: 3,
		Rule: selection.Rule{Select: []string{"runtimeclasses.node.k8s.io"}, LabelSelector: "color=red"}, Policy: shape.Policy{Changed: "paths"}},
}

// testEveryWayOfReading reads all options in every way: the table that a consumer has afterwards is the one that a first
// start gives.
func testEveryWayOfReading(t *testing.T, p *controlPlane) {
	w := newWorld(t, p)
	t.Run("first start in pages", func(t *testing.T) {
		w := w.in(t)
		s := w.newStore()
		w.run(s)
		table := s.table(t)
		for _, o := range options {
			if got := len(table[o.resourceName()]); got != o.want {
				t.Errorf("%s: %d objects, want %d", o.keys, got, o.want)
			}
		}
		if w.gateway.pages.Load() == 0 {
			t.Error("no list had a second page")
		}
	})
	for name, expires := range map[string]func(request int, renewed bool) bool{
		"once":                func(_ int, renewed bool) bool { return !renewed },
		"always":              func(int, bool) bool { return true },
		"at their second use": func(request int, _ bool) bool { return request%2 == 0 },
	} {
		t.Run("first start while tokens expire "+name, func(t *testing.T) {
			w := w.in(t)
			w.gateway.expires.Store(&expires)
			s := w.newStore()
			w.run(s)
			w.checkTable(s)
		})
	}
	t.Run("lost history", func(t *testing.T) {
		w := w.in(t)
		s := w.newStore()
		w.run(s)
		w.mutate()
		s.forgetHistory()
		w.run(s)
		w.checkTable(s)
		w.checkGaps(s, 1)
	})
	t.Run("lost history while tokens always expire", func(t *testing.T) {
		always := func(int, bool) bool { return true }
		w := w.in(t)
		s := w.newStore()
		w.run(s)
		w.mutate()
		s.forgetHistory()
		w.gateway.expires.Store(&always)
		w.run(s)
		w.checkTable(s)
		w.checkGaps(s, 1)
	})
	t.Run("rules edited between two runs", func(t *testing.T) {
		for name, narrow := range map[string]func(*selection.Rule){
			"from everything":    func(*selection.Rule) {},
			"from another place": func(r *selection.Rule) { r.Namespaces.Include = []string{"eq-b"} },
			"from other objects": func(r *selection.Rule) { r.LabelSelector = "color=blue" },
		} {
			t.Run(name, func(t *testing.T) {
				w := w.in(t)
				s := w.newStore()
				w.run(s, func(c *Config) {
					for i, o := range options {
						c.Rules[i] = selection.Rule{Select: o.Select, Exclude: o.Exclude, Capture: o.Capture}
						narrow(&c.Rules[i])
					}
				})
				w.mutate()
				w.run(s)
				w.checkTable(s)
			})
		}
	})
	t.Run("resync", func(t *testing.T) {
		w := w.in(t)
		w.gateway.limit.Store(0)
		s := w.newStore()
		w.run(s)
		table := s.table(t)
		n := len(s.transcript())
		w.run(s, func(c *Config) {
			for i := range c.Rules {
				c.Rules[i].Resync = time.Hour
			}
		}, awaitSynced(t, table))
		if got := s.table(t); !equalTables(got, table) {
			t.Errorf("the resync changes the table: %s", tableDifference(table, got))
		}
		for _, line := range s.transcript()[n:] {
			if !strings.HasPrefix(line, "sync ") {
				t.Errorf("emitted %s", line)
			}
		}
	})
}

// world is the cluster that the options are read from.
type world struct {
	t       *testing.T
	plane   *controlPlane
	gateway *gateway
	turn    *int
}

func newWorld(t *testing.T, p *controlPlane) *world {
	w := &world{t: t, plane: p, gateway: startGateway(t, p), turn: new(int)}
	for _, namespace := range []string{"eq-a", "eq-b"} {
		p.request(t, "POST", "/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, namespace))
	}
	for _, o := range options {
		for i := range 5 {
			for _, collection := range o.collections() {
				p.request(t, "POST", collection, o.object(i, color(i), 0))
			}
		}
	}
	return w
}

// in returns the world for a subtest, with a gateway that makes pages of three objects.
func (w *world) in(t *testing.T) *world {
	w.gateway.limit.Store(3)
	w.gateway.expires.Store(nil)
	return &world{t: t, plane: w.plane, gateway: w.gateway, turn: w.turn}
}

func color(i int) string { return []string{"red", "blue"}[i%2] }

func (o option) resourceName() string {
	parts := strings.Split(o.path, "/")
	if parts[0] == "api" {
		return parts[2]
	}
	return parts[3] + "." + parts[1]
}

// collections returns the paths of the option's collections.
func (o option) collections() (all []string) {
	at := strings.LastIndexByte(o.path, '/')
	if o.cluster {
		return []string{"/" + o.path}
	}
	for _, namespace := range []string{"eq-a", "eq-b"} {
		all = append(all, "/"+o.path[:at]+"/namespaces/"+namespace+o.path[at:])
	}
	return all
}

func (o option) object(i int, color string, turn int) string {
	return fmt.Sprintf(`{"metadata":{"name":"o%d","labels":{"color":%q},"annotations":{"note":"turn %d"}}%s}`, i, color, turn, o.body)
}

// mutate recreates o0, changes the color of o1 and the note of o2, and deletes what the previous mutation created.
func (w *world) mutate() {
	w.t.Helper()
	*w.turn++
	for _, o := range options {
		for _, collection := range o.collections() {
			w.plane.request(w.t, "DELETE", collection+"/o0", "")
			w.plane.request(w.t, "POST", collection, o.object(0, "red", *w.turn))
			w.plane.patchObject(w.t, collection+"/o1", fmt.Sprintf(`{"metadata":{"labels":{"color":%q}}}`, color(*w.turn)))
			w.plane.patchObject(w.t, collection+"/o2", fmt.Sprintf(`{"metadata":{"annotations":{"note":"turn %d"},"labels":{"turn":"%[1]d"}}}`, *w.turn))
			if *w.turn > 1 {
				w.plane.request(w.t, "DELETE", fmt.Sprintf("%s/new%d", collection, *w.turn-1), "")
			}
			w.plane.request(w.t, "POST", collection, strings.Replace(o.object(9, "red", *w.turn), `"o9"`, fmt.Sprintf(`"new%d"`, *w.turn), 1))
		}
	}
}

// run runs a Source until every scope is live and has a position, and until each await returns true.
func (w *world) run(s *shapedStore, adjust ...any) {
	w.t.Helper()
	var awaits []func(*shapedStore) bool
	s2, _, stop := startSource(w.t, newFakeAPI(w.t), s.store, func(c *Config) {
		c.Client = w.gateway.newClient(w.t)
		c.Rules, c.Append, c.Load, c.Shape = optionRules(), s.appendObservation, s.load, s.shape
		for _, a := range adjust {
			switch a := a.(type) {
			case func(*Config):
				a(c)
			case func(*shapedStore) bool:
				awaits = append(awaits, a)
			}
		}
	})
	defer stop()
	s.awaitTrue(w.t, "all scopes to be live", func() bool {
		all := s2.Status()
		return len(all) >= len(options) && !slices.ContainsFunc(all, func(one Status) bool {
			return one.State != Live || s.positionOf(one.Scope) == "" || one.DecodeErrors > 0
		})
	})
	for _, await := range awaits {
		s.awaitTrue(w.t, "what the run is for", func() bool { return await(s) })
	}
}

// checkTable compares the table with that of a first start.
func (w *world) checkTable(s *shapedStore) {
	w.t.Helper()
	w.in(w.t)
	fresh := w.newStore()
	w.run(fresh)
	if want, got := fresh.table(w.t), s.table(w.t); !equalTables(want, got) {
		w.t.Errorf("another table than after a first start: %s", tableDifference(want, got))
	}
}

// checkGaps expects n gaps of each scope.
func (w *world) checkGaps(s *shapedStore, n int) {
	w.t.Helper()
	count := map[string]int{}
	for _, c := range s.changes {
		if c.Type == event.Gap {
			count[c.Resource.String()+" in "+c.Namespace]++
		}
	}
	if len(count) < len(options) {
		w.t.Errorf("gaps %v", count)
	}
	for scope, got := range count {
		if got != n {
			w.t.Errorf("%d gaps of %s, want %d", got, scope, n)
		}
	}
}

// shapedStore is a store behind the policies of the options.
type shapedStore struct {
	*store
	shaper *shape.Shaper

	mu     sync.Mutex
	bodies map[string]map[string]event.Body // by resource and key
}

func (w *world) newStore() *shapedStore {
	s := &shapedStore{store: newStore(), bodies: map[string]map[string]event.Body{}}
	var policies []shape.Policy
	var metadataOnly []bool
	for _, o := range options {
		policies = append(policies, o.Policy)
		metadataOnly = append(metadataOnly, o.Capture == selection.CaptureMetadata)
	}
	var err error
	s.shaper, err = shape.New(policies, shape.Options{
		Key: bytes.Repeat([]byte("k"), 32), Bodies: s,
		RuleOf: selection.Owners(optionRules()), MetadataOnly: metadataOnly,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (s *shapedStore) shape(rule int, to event.AppendFunc) event.AppendFunc {
	return s.shaper.WrapAppend(rule, to)
}

func (s *shapedStore) load(resource event.Resource, known func(event.Known)) (event.StoredResource, error) {
	return s.shaper.WrapLoad(func(name string, known func(event.Known)) (event.StoredResource, error) {
		return s.store.loadResource(event.ParseResourceName(name), known)
	})(resource, known)
}

func (s *shapedStore) appendObservation(ctx context.Context, o event.Observation) error {
	s.mu.Lock()
	name := o.Resource.String()
	if s.bodies[name] == nil {
		s.bodies[name] = map[string]event.Body{}
	}
	for _, b := range o.Bodies {
		s.bodies[name][b.Key] = b
	}
	for _, key := range o.RemovedKeys {
		delete(s.bodies[name], key)
	}
	s.mu.Unlock()
	return s.store.appendObservation(ctx, o)
}

// Body implements shape.Bodies.
func (s *shapedStore) Body(resource, key string) (event.Body, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.bodies[resource][key]
	return b, ok, nil
}

// BodyResources implements shape.Bodies.
func (s *shapedStore) BodyResources() []string { return nil }

// DropBodies implements shape.Bodies.
func (s *shapedStore) DropBodies(context.Context, string) error { return nil }

// tooOld is a position that the gateway answers with 410.
const tooOld = "1"

// forgetHistory replaces all positions by one that is too old.
func (s *shapedStore) forgetHistory() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for _, scopes := range s.scopes {
		for i := range scopes {
			scopes[i].Position = tooOld
		}
	}
}

// tables are the objects by resource and key, with version and body.
type tables map[string]map[string]string

// table returns the tables that a consumer builds from the stream.
func (s *shapedStore) table(t *testing.T) tables {
	t.Helper()
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	var table consumer.Table
	resources := map[consumer.Resource]bool{}
	for _, c := range s.changes {
		r, err := consumer.Parse(format.AppendJSON(nil, c))
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Apply(r); err != nil {
			t.Fatal(err)
		}
		resources[consumer.Resource{Cluster: r.Cluster, Group: r.Group, Resource: r.Resource}] = true
	}
	all := tables{}
	for r := range resources {
		name := event.Resource{Group: r.Group, Resource: r.Resource}.String()
		all[name] = map[string]string{}
		for _, o := range table.Objects(r) {
			all[name][o.Namespace+"/"+o.Name] = o.UID + "@" + o.ResourceVersion + " " + string(o.Body)
		}
	}
	return all
}

func equalTables(a, b tables) bool { return tableDifference(a, b) == "" }

// tableDifference describes the differences, one a line.
func tableDifference(want, got tables) string {
	var lines []string
	for _, o := range options {
		name := o.resourceName()
		for key, object := range want[name] {
			if got[name][key] != object {
				lines = append(lines, fmt.Sprintf("\n%s (%s) %s is\n  %q, want\n  %q", name, o.keys, key, got[name][key], object))
			}
		}
		for key, object := range got[name] {
			if want[name][key] == "" {
				lines = append(lines, fmt.Sprintf("\n%s (%s) %s is in the table: %q", name, o.keys, key, object))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// awaitSynced returns a condition: every object in the table was emitted again.
func awaitSynced(_ *testing.T, table tables) func(*shapedStore) bool {
	return func(s *shapedStore) bool {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		synced := map[string]bool{}
		for _, c := range s.changes {
			if c.Type == event.Sync {
				synced[c.Resource.String()+" "+c.Namespace+"/"+c.Name] = true
			}
		}
		for name, objects := range table {
			for key := range objects {
				if !synced[name+" "+key] {
					return false
				}
			}
		}
		return true
	}
}

// gateway is a proxy before the API server that makes small pages and lets continue tokens expire.
type gateway struct {
	config *rest.Config

	limit atomic.Int64 // objects per page; 0 for as many as requested
	pages atomic.Int64 // requests with a continue token
	// expires reports whether a token has expired; nil means that none has. Tokens in errors are renewed. If it is set,
	// every third error contains none.
	expires atomic.Pointer[func(request int, renewed bool) bool]
}

// renewed marks a token that comes from an error.
const renewed = "renewed-"

func startGateway(t *testing.T, p *controlPlane) *gateway {
	g := &gateway{config: rest.CopyConfig(p.config)}
	to, err := url.Parse(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	next := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, Transport: p.client.Transport,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		token := q.Get("continue")
		if q.Get("watch") != "" && q.Get("resourceVersion") == tooOld && q.Get("sendInitialEvents") == "" {
			writeStatus(w, apierrors.NewResourceExpired("too old resource version"))
			return
		}
		fresh := strings.HasPrefix(token, renewed)
		if expires := g.expires.Load(); token != "" {
			request := int(g.pages.Add(1))
			if expires != nil && (*expires)(request, fresh) {
				expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result.")
				if request%3 > 0 {
					expired.ErrStatus.Continue = renewed + strings.TrimPrefix(token, renewed)
				}
				writeStatus(w, expired)
				return
			}
		}
		if fresh {
			q.Set("continue", strings.TrimPrefix(token, renewed))
		}
		if limit := g.limit.Load(); limit > 0 && q.Get("limit") != "" {
			q.Set("limit", fmt.Sprint(limit))
		}
		r.URL.RawQuery = q.Encode()
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	g.config.Host, g.config.TLSClientConfig = server.URL, rest.TLSClientConfig{}
	return g
}

func (g *gateway) newClient(t *testing.T) *apiserver.Client {
	t.Helper()
	c, err := apiserver.NewClient(g.config, "test")
	if err != nil {
		t.Fatal(err)
	}
	return c
}
