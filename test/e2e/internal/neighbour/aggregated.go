package neighbour

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Things is the resource that Aggregated serves. It has no namespaces.
var Things = schema.GroupVersionResource{Group: "aggregated.kubecdc.io", Version: "v1", Resource: "things"}

// Aggregated is an aggregated API server of one resource, such as they are: it lists and watches from memory, and knows
// neither streaming lists, to which it answers with 500, nor bookmarks.
type Aggregated struct {
	*Server

	mu      sync.Mutex
	events  []string      // one watch frame for each object: all are only ever added
	changed chan struct{} // closed and replaced with every event
	refuses bool
}

// StartAggregated starts the server.
func StartAggregated() (*Aggregated, error) {
	a := &Aggregated{changed: make(chan struct{})}
	var err error
	a.Server, err = start(a)
	return a, err
}

// Create adds an object.
func (a *Aggregated) Create(name string) {
	a.change(func() {
		rv := len(a.events) + 1
		a.events = append(a.events, fmt.Sprintf(
			`{"apiVersion":"%s","kind":"Thing","metadata":{"name":%q,"uid":"thing-%d","resourceVersion":"%d"}}`,
			Things.GroupVersion(), name, rv, rv))
	})
}

// Refuse makes it answer everything with 503, and end its watches, or mends it.
func (a *Aggregated) Refuse(refuses bool) { a.change(func() { a.refuses = refuses }) }

func (a *Aggregated) change(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
	close(a.changed)
	a.changed = make(chan struct{})
}

// look returns the objects, whether requests are refused, and what is closed when that changes.
func (a *Aggregated) look() (objects []string, refuses bool, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.events, a.refuses, a.changed
}

// ServeHTTP answers discovery, LIST and watch.
func (a *Aggregated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, refuses, _ := a.look()
	root := "/apis/" + Things.GroupVersion().String()
	switch {
	case refuses:
		refuse(w, apierrors.NewServiceUnavailable("out of order"))
	case r.URL.Path == root:
		answer(w, metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: Things.GroupVersion().String(),
			APIResources: []metav1.APIResource{{Name: Things.Resource, Kind: "Thing", Verbs: metav1.Verbs{"get", "list", "watch"}}},
		})
	case r.URL.Path != root+"/"+Things.Resource:
		refuse(w, apierrors.NewNotFound(Things.GroupResource(), ""))
	case r.URL.Query().Has("sendInitialEvents"):
		refuse(w, apierrors.NewInternalError(errors.New("not supported")))
	case r.URL.Query().Has("watch"):
		a.watch(w, r)
	default:
		a.list(w)
	}
}

func (a *Aggregated) list(w http.ResponseWriter) {
	objects, _, _ := a.look()
	items := make([]json.RawMessage, 0, len(objects))
	for _, o := range objects {
		items = append(items, json.RawMessage(o))
	}
	answer(w, map[string]any{
		"apiVersion": Things.GroupVersion().String(), "kind": "ThingList",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(len(objects))}, "items": items,
	})
}

// watch sends what was added after the resourceVersion, until the client leaves or everything is refused.
func (a *Aggregated) watch(w http.ResponseWriter, r *http.Request) {
	sent, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		sent = 0
	}
	w.Header().Set("Content-Type", "application/json")
	for {
		objects, refuses, changed := a.look()
		if refuses {
			return
		}
		for ; sent < len(objects); sent++ {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", objects[sent])
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.Kind, status.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}
