package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// fakeAPI is an API server of one resource, with a history that can be compacted and connections that can fail.
type fakeAPI struct {
	t      *testing.T
	server *httptest.Server
	dials  atomic.Int32 // connections to refuse

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when anything below changes
	history  []fakeEvent   // ascending
	rv       int
	oldest   int                // history before this version is compacted
	faults   []http.HandlerFunc // answers to the next requests
	lists    []http.HandlerFunc // answers to the next LISTs
	cut      chan struct{}      // closed and replaced to end all streams
	log      []string           // requests, without discovery
	groups   []apidiscovery.APIGroupDiscovery
	indented bool // writes events over several lines
	deny     bool // 403

	version     string         // of the server
	noWatchList bool           // the position check is refused
	absent      bool           // 404
	nameless    bool           // kube-system is forbidden
	cluster     string         // UID of kube-system
	lookups     map[string]int // requests by namespace
	spaces      map[string]int // status of requests by namespace; 0 means that it exists
	existing    []string       // namespaces of a list
	checks      int            // requests for kube-system
	down        bool           // 503, discovery too
	bookmark    bool           // sends a bookmark every minute
	mute        bool           // new watches stay silent
	hang        chan struct{}  // closed and replaced to silence all streams that are open

	polls int // of discovery
}

type fakeEvent struct {
	rv         int
	kind, name string
}

func newFakeAPI(t *testing.T) *fakeAPI {
	f := &fakeAPI{t: t, lookups: map[string]int{}, rv: 10, cluster: "cluster-uid", changed: make(chan struct{}), cut: make(chan struct{}), hang: make(chan struct{})}
	f.groups = []apidiscovery.APIGroupDiscovery{coreGroup("pods")}
	f.server = httptest.NewServer(f)
	t.Cleanup(f.server.Close)
	t.Cleanup(f.server.CloseClientConnections)
	return f
}

func coreGroup(resources ...string) apidiscovery.APIGroupDiscovery {
	return groupOf("", "v1", resources...)
}

func groupOf(name, version string, resources ...string) apidiscovery.APIGroupDiscovery {
	v := apidiscovery.APIVersionDiscovery{Version: version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
	for _, r := range resources {
		v.Resources = append(v.Resources, apidiscovery.APIResourceDiscovery{
			Resource: r, Scope: apidiscovery.ScopeNamespace, Verbs: []string{"get", "list", "watch"},
			ResponseKind: &metav1.GroupVersionKind{Group: name, Version: version, Kind: "Kind"},
		})
	}
	return apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: []apidiscovery.APIVersionDiscovery{v}}
}

// config connects to the fake; f.dials refuses the next connections.
func (f *fakeAPI) config() *rest.Config {
	if f.server == nil { // the test has its own client
		return &rest.Config{}
	}
	return &rest.Config{Host: f.server.URL, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if f.dials.Add(-1) >= 0 {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}}
}

// update changes the fake and wakes its streams.
func (f *fakeAPI) update(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeAPI) writeEvents(kind string, names ...string) {
	f.update(func() {
		for _, name := range names {
			f.rv++
			f.history = append(f.history, fakeEvent{f.rv, kind, name})
		}
	})
}

// breakStreams ends every stream in the middle of a chunk, and answers the next requests with faults.
func (f *fakeAPI) breakStreams(faults ...http.HandlerFunc) { f.breakStreamsAfter(func() {}, faults...) }

// breakStreamsAfter is breakStreams after a change that no stream sees.
func (f *fakeAPI) breakStreamsAfter(do func(), faults ...http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	f.faults = append(f.faults, faults...)
	close(f.cut)
	f.cut = make(chan struct{})
}

func (f *fakeAPI) requestLog() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

func (f *fakeAPI) countRequests(prefix string) int {
	n := 0
	for _, r := range f.requestLog() {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	down, nameless := f.down, f.nameless
	f.mu.Unlock()
	switch {
	case down:
		writeStatus(w, apierrors.NewServiceUnavailable("down"))
		return
	case r.URL.Path == "/version":
		f.mu.Lock()
		defer f.mu.Unlock()
		fmt.Fprintf(w, `{"gitVersion":%q}`, f.version)
		return
	case r.URL.Path == "/api", r.URL.Path == "/apis":
		f.answerDiscovery(w, r.URL.Path == "/api")
		return
	case strings.HasSuffix(r.URL.Path, "/namespaces/kube-system"):
		if nameless {
			writeStatus(w, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "kube-system",
				errors.New(`User "kubecdc" cannot get resource "namespaces" in API group "" in the namespace "kube-system"`)))
			return
		}
		f.mu.Lock()
		f.checks++
		uid := f.cluster
		f.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":%q}}`, uid)
		return
	}
	if r.URL.Path == "/api/v1/namespaces" {
		f.answerNamespaces(w)
		return
	}
	if name, is := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/"); is && !strings.Contains(name, "/") {
		f.answerNamespace(w, name)
		return
	}
	q := r.URL.Query()
	what := "LIST"
	switch {
	case q.Get("watch") != "" && q.Get("fieldSelector") != "":
		what = "ASK"
	case q.Get("watch") != "":
		what = "WATCH"
	}
	f.mu.Lock()
	f.log = append(f.log, fmt.Sprintf("%s rv=%s", what, q.Get("resourceVersion")))
	var fault http.HandlerFunc
	if len(f.faults) > 0 {
		fault, f.faults = f.faults[0], f.faults[1:]
	}
	if what == "LIST" && len(f.lists) > 0 {
		fault, f.lists = f.lists[0], f.lists[1:]
	}
	noWatchList, deny, absent := f.noWatchList, f.deny, f.absent
	f.mu.Unlock()
	gr := schema.GroupResource{Resource: "pods"}
	switch {
	case fault != nil:
		fault(w, r)
	case deny:
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		writeStatus(w, apierrors.NewForbidden(gr, name, fmt.Errorf("User %q cannot watch resource %q", "kubecdc", gr.Resource)))
	case absent:
		writeStatus(w, apierrors.NewNotFound(gr, ""))
	case noWatchList && q.Get("sendInitialEvents") != "":
		writeStatus(w, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
	case q.Get("resourceVersionMatch") == "Exact":
		f.answerExactList(w, q)
	case what == "LIST":
		f.answerList(w)
	default:
		f.answerWatch(w, r)
	}
}

// answerNamespace answers a request for one namespace.
func (f *fakeAPI) answerNamespace(w http.ResponseWriter, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := schema.GroupResource{Resource: "namespaces"}
	switch f.lookups[name]++; f.spaces[name] {
	case http.StatusNotFound:
		writeStatus(w, apierrors.NewNotFound(of, name))
	case http.StatusForbidden:
		writeStatus(w, apierrors.NewForbidden(of, name, errors.New("not for you")))
	case http.StatusServiceUnavailable:
		writeStatus(w, apierrors.NewServiceUnavailable("down"))
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":%q,"uid":"u"}}`, name)
	}
}

// answerNamespaces answers a list of namespaces, with the status of "*" in spaces.
func (f *fakeAPI) answerNamespaces(w http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookups["*"]++
	if f.spaces["*"] == http.StatusForbidden {
		writeStatus(w, apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", errors.New("not for you")))
		return
	}
	var items []string
	for _, name := range f.existing {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"uid":"u","resourceVersion":"1"}}`, name))
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"10"},"items":[%s]}`,
		strings.Join(items, ","))
}

// namespaceLookups returns how often a namespace was requested.
func (f *fakeAPI) namespaceLookups(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lookups[name]
}

func (f *fakeAPI) answerDiscovery(w http.ResponseWriter, core bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if core {
		f.polls++
	}
	var l apidiscovery.APIGroupDiscoveryList
	for _, g := range f.groups {
		if (g.Name == "") == core {
			l.Items = append(l.Items, g)
		}
	}
	w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	body, err := json.Marshal(l)
	if err != nil {
		f.t.Error(err)
	}
	_, _ = w.Write(body) // ignore write errors: the client may have disconnected
}

func writeStatus(w http.ResponseWriter, err *apierrors.StatusError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(err.ErrStatus.Code))
	_ = json.NewEncoder(w).Encode(statusJSON(err))
}

func statusJSON(err *apierrors.StatusError) metav1.Status {
	s := err.ErrStatus
	s.Kind, s.APIVersion = "Status", "v1"
	return s
}

// currentState returns the existing objects by name, with the resourceVersion of each.
func (f *fakeAPI) currentState() map[string]fakeEvent {
	m := map[string]fakeEvent{}
	for _, e := range f.history {
		if e.kind == "DELETED" {
			delete(m, e.name)
		} else {
			m[e.name] = e
		}
	}
	return m
}

func objectJSON(name string, rv int) string {
	return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":"ns","uid":"uid-%s","resourceVersion":"%d","managedFields":[{"manager":"test","time":"2026-01-02T03:04:05Z"}]}}`, name, name, rv)
}

func (f *fakeAPI) answerList(w http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var items []string
	state := f.currentState()
	for _, name := range slices.Sorted(maps.Keys(state)) {
		items = append(items, objectJSON(name, state[name].rv))
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[%s]}`, f.rv, strings.Join(items, ","))
}

// answerExactList answers with the state at a version, of one object if its name is selected.
func (f *fakeAPI) answerExactList(w http.ResponseWriter, q url.Values) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, _ := strconv.Atoi(q.Get("resourceVersion"))
	state := map[string]int{}
	for _, e := range f.history {
		if e.rv > at {
			break
		}
		if state[e.name] = e.rv; e.kind == "DELETED" {
			delete(state, e.name)
		}
	}
	var items []string
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if selector := q.Get("fieldSelector"); selector == "" || selector == "metadata.name="+name {
			items = append(items, objectJSON(name, state[name]))
		}
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[%s]}`, at, strings.Join(items, ","))
}

func (f *fakeAPI) answerWatch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	f.mu.Lock()
	cut, hang, oldest, newest, indented := f.cut, f.hang, f.oldest, f.rv, f.indented
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	send := func(kind, object string) {
		line := fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object)
		if indented {
			var b bytes.Buffer
			_ = json.Indent(&b, []byte(line), "", " ")
			line = b.String()
		}
		fmt.Fprintln(w, line)
		w.(http.Flusher).Flush()
	}
	fail := func(err *apierrors.StatusError) {
		b, _ := json.Marshal(statusJSON(err))
		send("ERROR", string(b))
	}
	w.(http.Flusher).Flush()
	initial := q.Get("sendInitialEvents") == "true"
	switch {
	case initial && from > newest:
		err := apierrors.NewTimeoutError("Too large resource version", 1)
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
		fail(err)
		return
	case !initial && from < oldest:
		fail(apierrors.NewResourceExpired("too old resource version"))
		return
	}
	if initial {
		send("BOOKMARK", fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`, newest))
		from = newest
	}
	ctx := r.Context()
	if seconds, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	f.streamEvents(ctx, cut, hang, from, send)
}

// streamEvents sends the events after a resourceVersion until the stream is cut. Changes made together with a cut or a
// silence are not sent.
func (f *fakeAPI) streamEvents(ctx context.Context, cut, hang chan struct{}, from int, send func(kind, object string)) {
	f.mu.Lock()
	mute, bookmark := f.mute, f.bookmark
	f.mu.Unlock()
	if mute {
		<-ctx.Done()
		return
	}
	var minute <-chan time.Time
	if bookmark {
		ticker := time.NewTicker(time.Minute)
		defer ticker.Stop()
		minute = ticker.C
	}
	for {
		f.mu.Lock()
		changed, newest := f.changed, f.rv
		events := slices.Clone(f.history)
		if f.cut != cut || f.hang != hang {
			events = nil
		}
		f.mu.Unlock()
		for _, e := range events {
			if e.rv > from {
				send(e.kind, objectJSON(e.name, e.rv))
				from = e.rv
			}
		}
		select {
		case <-changed:
		case <-minute:
			send("BOOKMARK", fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d"}}`, newest))
		case <-hang:
			<-ctx.Done()
			return
		case <-ctx.Done():
			return
		case <-cut:
			panic(http.ErrAbortHandler)
		}
	}
}

// silenceStreams makes all open streams silent, after a change that they do not see.
func (f *fakeAPI) silenceStreams(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.hang)
	f.hang = make(chan struct{})
}

// store is a journal in memory.
type store struct {
	mu        sync.Mutex
	resources map[string]event.Resource
	scopes    map[string][]event.StoredScope // by resource
	known     map[string]map[string]event.Known
	changes   []*event.Change
	bodies    map[string]event.Body // by key
	bodiless  bool                  // until BodiesFilled
	dropped   []string
	cluster   string // UID
	changed   chan struct{}
	timeout   time.Duration // of awaitTrue
}

func newStore() *store {
	return &store{
		resources: map[string]event.Resource{}, scopes: map[string][]event.StoredScope{}, known: map[string]map[string]event.Known{},
		bodies: map[string]event.Body{}, changed: make(chan struct{}), timeout: 3 * time.Minute,
	}
}

// storeState stores a scope of pods, or of another resource, with a position.
func (s *store) storeState(scope, position string, known ...event.Known) {
	r := event.ParseResourceName(strings.Split(scope, ";")[0])
	r.Version, r.Kind = "v1", "Kind"
	name := r.String()
	s.resources[name] = r
	s.scopes[name] = append(s.scopes[name], event.StoredScope{ID: scope, Position: position})
	if s.known[name] == nil {
		s.known[name] = map[string]event.Known{}
	}
	for _, k := range known {
		s.known[name][k.Key] = k
	}
}

func (s *store) appendObservation(_ context.Context, o event.Observation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes = append(s.changes, o.Changes...)
	name := o.Resource.String()
	s.resources[name] = o.Resource
	if s.known[name] == nil {
		s.known[name] = map[string]event.Known{}
	}
	for _, k := range o.Known {
		s.known[name][k.Key] = k
	}
	for _, key := range o.RemovedKeys {
		delete(s.known[name], key)
	}
	for _, b := range o.Bodies {
		s.bodies[b.Key] = b
	}
	for i := range s.scopes[name] {
		scope := &s.scopes[name][i]
		if scope.ID != o.Scope {
			continue
		}
		if o.LostReason != "" {
			*scope = event.StoredScope{ID: scope.ID, LostReason: o.LostReason, Pass: scope.Pass, Requests: scope.Requests}
		}
		if o.Snapshot != "" {
			*scope = event.StoredScope{ID: scope.ID, Snapshot: o.Snapshot, Requests: scope.Requests}
		}
		if o.Position != "" {
			*scope = event.StoredScope{ID: scope.ID, Position: o.Position, Snapshot: scope.Snapshot, Requests: scope.Requests}
		}
		if o.EndedRequest != "" {
			scope.EndSnapshotRequest(o.EndedRequest, o.EndedCount, o.EndedAbsent)
		}
	}
	s.notifyWaiters()
	return nil
}

func (s *store) setScopes(_ context.Context, r event.Resource, scopes []event.StoredScope) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := slices.Clone(scopes)
	event.CarrySnapshotRequests(s.scopes[r.String()], next)
	s.resources[r.String()], s.scopes[r.String()] = r, next
	return nil
}

func (s *store) notifyWaiters() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *store) loadResource(r event.Resource, known func(event.Known)) (event.StoredResource, error) {
	resource := r.String()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.known[resource] {
		if known != nil {
			known(k)
		}
	}
	return event.StoredResource{Resource: s.resources[resource], Scopes: slices.Clone(s.scopes[resource]), BodiesMissing: s.bodiless}, nil
}

func (s *store) recordFilled(context.Context, string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodiless = false
	s.notifyWaiters()
	return nil
}

// filledResources returns the bodies as "key@resourceVersion" once BodiesFilled was called.
func (s *store) filledResources() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, b := range s.bodies {
		if !s.bodiless && len(b.Raw) > 0 {
			all = append(all, key+"@"+b.ResourceVersion)
		}
	}
	slices.Sort(all)
	return all
}

// positionOf returns the position of a scope; "" if there is none.
func (s *store) positionOf(scope string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stored := range s.scopes[strings.Split(scope, ";")[0]] {
		if stored.ID == scope {
			return stored.Position
		}
	}
	return ""
}

func (s *store) storedResources() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.resources)), nil
}

func (s *store) dropResource(_ context.Context, resource string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.resources, resource)
	delete(s.scopes, resource)
	delete(s.known, resource)
	s.dropped = append(s.dropped, resource)
	s.notifyWaiters()
	return nil
}

func (s *store) recordCluster(_ context.Context, uid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster = uid
	s.notifyWaiters()
	return nil
}

func (s *store) resetCluster(_ context.Context, uid, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster = uid
	clear(s.resources)
	clear(s.scopes)
	clear(s.known)
	return nil
}

// changeAt returns emitted change number i, from 0.
func (s *store) changeAt(i int) *event.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c.Type.FramesSnapshot() {
			continue
		}
		if i--; i < 0 {
			return c
		}
	}
	return nil
}

// recordedCluster returns the stored UID of the cluster.
func (s *store) recordedCluster() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster
}

func (s *store) dropCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dropped)
}

// snapshotFrames returns the records that begin and end snapshots.
func (s *store) snapshotFrames() (all []*event.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c.Type.FramesSnapshot() {
			all = append(all, c)
		}
	}
	return all
}

// transcript returns the stream so far, without snapshot frames: "type name@resourceVersion", with a trailing "~" if
// coalesced, and gaps with their positions.
func (s *store) transcript() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, c := range s.changes {
		if c.Type.FramesSnapshot() {
			continue
		}
		line := fmt.Sprintf("%s %s@%s", c.Type, c.Name, c.ResourceVersion)
		if c.Gap != nil {
			line = fmt.Sprintf("gap %s-%s", c.Gap.From, c.Gap.To)
		}
		if c.Coalesced {
			line += "~"
		}
		if c.Left {
			line += " left"
		}
		if c.OnlySink != "" {
			line += " to " + c.OnlySink
		}
		all = append(all, line)
	}
	return all
}

// awaitTrue waits until ok, or fails the test with the transcript.
func (s *store) awaitTrue(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(s.timeout)
	tick := time.NewTicker(5 * time.Millisecond) // ok may depend on more than the store
	defer tick.Stop()
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-limit:
			t.Fatalf("timed out waiting for %s\nemitted %q", what, s.transcript())
		}
	}
}

func (s *store) awaitEmitted(t *testing.T, want ...string) {
	t.Helper()
	s.awaitTrue(t, fmt.Sprintf("%q", want), func() bool { return len(s.transcript()) >= len(want) })
	if got := s.transcript(); !slices.Equal(got, want) {
		t.Fatalf("emitted\n got %q\nwant %q", got, want)
	}
}

// awaitPosition waits until everything up to a resourceVersion is stored: a complete list, not a part.
func (s *store) awaitPosition(t *testing.T, scope, want string) {
	t.Helper()
	s.awaitTrue(t, "position "+want, func() bool { return s.positionOf(scope) == want })
}

// startSource starts a Source with the fake and the store. stop ends it; the end of the test does too.
func startSource(t *testing.T, f *fakeAPI, st *store, adjust ...func(*Config)) (s *Source, log *logs.Buffer, stop func()) {
	t.Helper()
	client, err := apiserver.NewClient(f.config(), "test")
	if err != nil {
		t.Fatal(err)
	}
	log = &logs.Buffer{}
	cfg := Config{
		Client: client, Cluster: "c", Rules: []selection.Rule{{Select: []string{"pods"}}}, Interval: 20 * time.Millisecond,
		Load: st.loadResource, SetScopes: st.setScopes, Append: st.appendObservation, BodiesFilled: st.recordFilled, DropResource: st.dropResource, StoredResources: st.storedResources,
		GapsRecorded: func(context.Context) error { return nil },
		Log:          slog.New(slog.NewTextHandler(log, nil)),
	}
	for _, a := range adjust {
		a(&cfg)
	}
	if s, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		cfg.Client.Close()
		if t.Failed() {
			requests := f.requestLog()
			t.Logf("requests %q\nlog\n%s", requests[:min(len(requests), 50)], log)
		}
	})
	t.Cleanup(stop)
	return s, log, stop
}

// awaitState waits until the only scope has a state. Live also requires that the first list is stored, so that the next
// process can resume.
func awaitState(t *testing.T, st *store, s *Source, want State) {
	t.Helper()
	st.awaitTrue(t, string(want), func() bool {
		all := s.Status()
		if len(all) != 1 || all[0].State != want {
			return false
		}
		return want != Live || st.positionOf(all[0].Scope) != ""
	})
}
