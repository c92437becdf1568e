package replay

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) {
	leaks.Main(m,
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// A stopped client leaves its HTTP/2 connection to the transport, which closes it when it is idle.
		goleak.IgnoreAnyFunction("net/http/internal/http2.(*ClientConn).readLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"),
	)
}

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
var events = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// playing is a server in the course of a test.
type playing struct {
	corpus  *corpus.Corpus
	control *Control
	config  *rest.Config
	client  dynamic.Interface
}

func play(t *testing.T, o corpus.Options, bookmarkEvery time.Duration) *playing {
	t.Helper()
	c, err := corpus.New(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &playing{corpus: c}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	server := New(Options{Corpus: c, Kubeconfig: path, BookmarkEvery: bookmarkEvery})
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	eventually(t, func() error {
		p.control, err = Dial(path)
		if err == nil {
			_, err = p.control.Requests(t.Context())
		}
		return err
	})
	t.Cleanup(p.control.Close)
	if p.config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		t.Fatal(err)
	}
	p.config.QPS = -1
	if p.client, err = dynamic.NewForConfig(p.config); err != nil {
		t.Fatal(err)
	}
	return p
}

// eventually polls a condition of another goroutine.
func eventually(t *testing.T, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// seen collects the resourceVersions that a handler receives.
type seen struct {
	mu  sync.Mutex
	rvs map[string]corpus.Type
}

func (s *seen) note(t corpus.Type, o any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rvs[o.(*unstructured.Unstructured).GetResourceVersion()] = t
}

// lacks returns the entry that was not seen, or with another type.
func (s *seen) lacks(entries []corpus.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		if got, ok := s.rvs[strconv.FormatUint(e.RV, 10)]; !ok || got != e.Type {
			return fmt.Errorf("entry %+v was seen: %v, as %s", e, ok, got)
		}
	}
	return nil
}

func TestAnInformerSeesEveryEntry(t *testing.T) {
	p := play(t, corpus.Options{Objects: 200, Changes: 2000, Seed: 1}, 0)
	s := &seen{rvs: map[string]corpus.Type{}}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(p.client, 0)
	for _, r := range []schema.GroupVersionResource{pods, events} {
		_, err := factory.ForResource(r).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.note(corpus.Added, o) },
			UpdateFunc: func(_, o any) { s.note(corpus.Modified, o) },
			DeleteFunc: func(o any) { s.note(corpus.Deleted, o) },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	eventually(t, func() error { return s.lacks(p.corpus.Initial()) })
	if err := s.lacks(p.corpus.Entries()); err == nil {
		t.Fatal("changes were seen before the start")
	}
	if _, err := p.control.Start(ctx, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return s.lacks(p.corpus.Entries()) })

	requests, err := p.control.Requests(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pods", "events"} {
		if got := requests[name]; got != (Requests{WatchLists: 1, Live: 1}) {
			t.Errorf("%s were asked for by %+v, want one streaming list", name, got)
		}
	}
}

func TestPagedListHoldsEveryObjectOnce(t *testing.T) {
	p := play(t, corpus.Options{Objects: 95, Changes: 300, Seed: 2}, 0)
	want := 0
	for _, e := range p.corpus.Initial() {
		if e.Resource == corpus.Pods {
			want++
		}
	}
	names := map[string]bool{}
	options := metav1.ListOptions{Limit: 7}
	for {
		page, err := p.client.Resource(pods).List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if got := page.GetResourceVersion(); got != strconv.FormatUint(p.corpus.Initial()[94].RV, 10) {
			t.Fatalf("the list is at %s", got)
		}
		for i := range page.Items {
			names[page.Items[i].GetNamespace()+"/"+page.Items[i].GetName()] = true
		}
		options.Continue = page.GetContinue()
		if options.Continue == "" {
			break
		}
		// The changes happen in the middle. The list goes on in the state where it began.
		if _, err := p.control.Start(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(names) != want {
		t.Errorf("%d different pods in the pages, want %d", len(names), want)
	}
}

// next returns the next event of a watch.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch has ended")
		}
		return e
	case <-time.After(3 * time.Minute):
		t.Fatal("nothing comes")
	}
	return watch.Event{}
}

func rvOf(t *testing.T, e watch.Event) string {
	t.Helper()
	o, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("%s of a %T", e.Type, e.Object)
	}
	return o.GetResourceVersion()
}

func TestAWatchGoesOnBehindItsPosition(t *testing.T) {
	p := play(t, corpus.Options{Objects: 50, Changes: 500, Seed: 3}, 0)
	if _, err := p.control.Start(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	const from = 250
	w, err := p.client.Resource(events).Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: strconv.FormatUint(p.corpus.Changes()[from].RV, 10),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, e := range p.corpus.Changes()[from+1:] {
		if e.Resource != corpus.Events {
			continue
		}
		got := next(t, w)
		if string(got.Type) != e.Type.String() || rvOf(t, got) != strconv.FormatUint(e.RV, 10) {
			t.Fatalf("got %s at %s, want %+v", got.Type, rvOf(t, got), e)
		}
	}
}

func TestQuietWatchGetsBookmarks(t *testing.T) {
	p := play(t, corpus.Options{Objects: 50, Seed: 4}, time.Millisecond)
	at := strconv.FormatUint(p.corpus.Initial()[49].RV, 10)
	w, err := p.client.Resource(pods).Watch(t.Context(), metav1.ListOptions{ResourceVersion: at, AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for range 2 {
		if e := next(t, w); e.Type != watch.Bookmark || rvOf(t, e) != at {
			t.Fatalf("got %s at %s, want a bookmark at %s", e.Type, rvOf(t, e), at)
		}
	}
}

func TestPositionBeforeTheHistoryIsGone(t *testing.T) {
	p := play(t, corpus.Options{Objects: 50, Seed: 5}, 0)
	w, err := p.client.Resource(pods).Watch(t.Context(), metav1.ListOptions{ResourceVersion: "17"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e := next(t, w)
	if e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("got %s %v, want 410 Gone", e.Type, e.Object)
	}
}

func TestPositionInTheFutureIsTooLarge(t *testing.T) {
	p := play(t, corpus.Options{Objects: 50, Seed: 6}, 0)
	config := dynamic.ConfigFor(p.config)
	config.GroupVersion = &schema.GroupVersion{Version: "v1"}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	err = client.Get().AbsPath("/api/v1/pods").Param("limit", "1").Param("resourceVersion", "999999999999").
		Param("resourceVersionMatch", "NotOlderThan").MaxRetries(0).Do(t.Context()).Error()
	if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		t.Errorf("got %v, want the cause ResourceVersionTooLarge", err)
	}
}

func TestSelectorsAreRefused(t *testing.T) {
	p := play(t, corpus.Options{Objects: 50, Seed: 7}, 0)
	_, err := p.client.Resource(pods).List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("got %v, want a bad request", err)
	}
}

func TestDiscoveryNamesTheResourcesInBothForms(t *testing.T) {
	p := play(t, corpus.Options{Objects: 50, Seed: 8}, 0)
	client, err := discovery.NewDiscoveryClientForConfig(p.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, legacy := range []bool{false, true} {
		client.UseLegacyDiscovery = legacy
		_, lists, err := client.ServerGroupsAndResources()
		if err != nil {
			t.Fatalf("legacy %v: %v", legacy, err)
		}
		if len(lists) != 1 || lists[0].GroupVersion != "v1" || len(lists[0].APIResources) != 3 {
			t.Errorf("legacy %v: %+v", legacy, lists)
		}
	}
	if v, err := client.ServerVersion(); err != nil || v.Minor != "37" {
		t.Errorf("version %v, %v", v, err)
	}
	namespace, err := p.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).
		Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil || namespace.GetUID() == "" {
		t.Errorf("kube-system: %v, %v", namespace, err)
	}
}
