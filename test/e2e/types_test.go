package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// passing is how many definitions come and go, and atOnce how many of them at the same time.
	passing, atOnce = 200, 20
	// noise is by how much goroutines and live memory may differ between two looks at an exporter that does the same: the
	// journal has one to three tables of 4 MiB in memory, according to how far its flushes are.
	noiseGoroutines, noiseBytes = 20, 12 << 20
)

// TestShortLivedTypesAreWatchedAndLeaveNothing selects everything; then definitions come, and two hundred come and go.
func TestShortLivedTypesAreWatchedAndLeaveNothing(t *testing.T) {
	require.Long(t)
	l := newRestricted(t, "resources: [{select: [\"*\"]}]\n")
	l.apply(l.command("rbac", "--offline", "--config", l.config))
	l.awaitAccess("")
	l.env = append(os.Environ(), "GOGC=10") // garbage is collected often, so that it is not waited for
	_, config, stop := l.start()
	defer stop()
	w := &watched{restricted: l, config: config, arrived: map[string]bool{}, next: map[string]bool{}}
	defer w.close()

	served := l.listable()
	w.awaitScopes(served)
	t.Logf("%d resources are served and watched", len(served))

	w.fill()
	w.pass("warm", atOnce) // what grows once has grown
	w.awaitScopes(served)
	before := w.footprint()
	began := time.Now()
	w.pass("passing", passing)
	t.Logf("%d definitions came, told of their first object, and went in %v", passing, time.Since(began).Round(time.Second))
	w.awaitScopes(served)
	w.awaitFootprint(before)
}

// watched is a running exporter, and its records.
type watched struct {
	*restricted
	config string

	mu      sync.Mutex
	file    *os.File
	reader  *bufio.Reader
	rest    string
	arrived map[string]bool // "added resource name"
	next    map[string]bool
}

// listable asks the API server which resources can be watched. Of the two kinds of events the older one is.
func (l *restricted) listable() []string {
	l.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", l.controlPlane.Kubeconfig())
	l.must(err)
	client, err := discovery.NewDiscoveryClientForConfig(config)
	l.must(err)
	var lists []*metav1.APIResourceList
	l.must(workload.Persist(l.t.Context(), func() (err error) {
		lists, err = client.ServerPreferredResources()
		return err
	}))
	var all []string
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		l.must(err)
		for _, r := range list.APIResources {
			if name := (schema.GroupResource{Group: gv.Group, Resource: r.Name}).String(); name != "events.events.k8s.io" {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// awaitScopes waits until exactly these are live, and nothing else is known.
func (w *watched) awaitScopes(want []string) {
	w.t.Helper()
	w.await(w.config+".log", func() string {
		states := w.states()
		if got := slices.Sorted(maps.Keys(states)); !slices.Equal(got, want) {
			return fmt.Sprintf("%d scopes, there are %d: %v", len(want), len(got), difference(got, want))
		}
		return wrong(states, "", "", "live")
	})
}

// difference is what only one of two lists holds.
func difference(a, b []string) []string {
	var all []string
	for _, one := range a {
		if !slices.Contains(b, one) {
			all = append(all, "+"+one)
		}
	}
	for _, one := range b {
		if !slices.Contains(a, one) {
			all = append(all, "-"+one)
		}
	}
	return all
}

// typeNamed is a kind of custom resource with a group of its own.
func typeNamed(plural string) workload.Kind {
	group := plural + ".passing.kubecdc.io"
	return workload.Kind{
		Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural},
		Object: func() *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": "Passing"}}
		},
	}
}

// come defines a type, makes an object of it, and returns when that is emitted.
func (w *watched) come(ctx context.Context, kind workload.Kind) error {
	if err := w.cluster.Define(ctx, kind.Resource.Group, kind.Resource.Resource, "Passing"); err != nil {
		return err
	}
	if err := w.cluster.Create(ctx, kind, "web", "first"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, arriveWithin)
	defer cancel()
	tick := time.NewTicker(lookEvery / 5)
	defer tick.Stop()
	for {
		there, err := w.has(kind.Resource.Resource)
		if there || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the first object of %s was not told: %w", kind.Resource.Resource, ctx.Err())
		case <-tick.C:
		}
	}
}

// has reads on and reports whether something of a resource was emitted.
func (w *watched) has(resource string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		var err error
		if w.file, err = os.Open(w.config + ".changes"); err != nil {
			return false, err
		}
		w.reader = bufio.NewReader(w.file)
	}
	for {
		part, err := w.reader.ReadString('\n')
		w.rest += part
		if errors.Is(err, io.EOF) {
			return w.arrived[resource], nil
		}
		if err != nil {
			return false, err
		}
		if _, rest, ok := strings.Cut(w.rest, `"resource":"`); ok {
			name, _, _ := strings.Cut(rest, `"`)
			w.arrived[name] = true
		}
		w.rest = ""
	}
}

func (w *watched) close() {
	if w.file != nil {
		w.file.Close()
	}
}

// fill writes more than what an exporter keeps of recent changes, whatever they are of: the end of the journal, for those
// of its readers, and the tables that are not on disk yet. From then on it is as full as it will be, because what is written
// is as large as a definition.
func (w *watched) fill() {
	w.t.Helper()
	const size, kept = 4 << 10, 20 << 20
	w.each(kept/size, func(worker, i int) error {
		name := fmt.Sprintf("large-%d", worker)
		if i == worker {
			return w.cluster.Create(w.t.Context(), workload.ConfigMaps, "default", name)
		}
		data := strings.Repeat(string(rune('a'+i/atOnce%26)), size)
		return w.cluster.Patch(w.t.Context(), workload.ConfigMaps, "default", name, `{"data":{"large":"`+data+`"}}`)
	})
}

// pass lets types come and go.
func (w *watched) pass(name string, n int) {
	w.t.Helper()
	w.each(n, func(_, i int) error {
		kind := typeNamed(fmt.Sprintf("%s%d", name, i))
		return errors.Join(w.come(w.t.Context(), kind),
			w.cluster.Undefine(w.t.Context(), kind.Resource.Group, kind.Resource.Resource))
	})
}

// each does something for every number below n, some of them at the same time, and a worker's in their order.
func (w *watched) each(n int, do func(worker, i int) error) {
	w.t.Helper()
	errs := make([]error, atOnce)
	var all sync.WaitGroup
	for worker := range atOnce {
		all.Go(func() {
			for i := worker; i < n && errs[worker] == nil; i += atOnce {
				errs[worker] = do(worker, i)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatalf("%v\n%s", err, readFile(w.t, w.config+".log"))
	}
}

// footprint is what an exporter takes.
type footprint struct {
	goroutines, series int
	bytes              int // in use, as the last garbage collection found
	watches            int // that the API server answers for it and everyone else
}

func (w *watched) footprint() footprint {
	w.t.Helper()
	// Garbage is what is left over only behind a collection that began after it became garbage.
	collections := w.value("go_gc_duration_seconds_count")
	w.await(w.config+".log", func() string {
		if w.value("go_gc_duration_seconds_count") < collections+2 {
			return "two garbage collections"
		}
		return ""
	})
	text, err := w.cluster.Metrics(w.t.Context())
	w.must(err)
	watches := 0
	for name, value := range series(text, "apiserver_longrunning_requests{") {
		if strings.Contains(name, `verb="WATCH"`) {
			watches += value
		}
	}
	return footprint{
		goroutines: w.value("go_goroutines"), bytes: w.value("go_gc_heap_live_bytes"),
		series: strings.Count(w.get("/metrics"), "\nkubecdc_"), watches: watches,
	}
}

// value is that of a metric without labels.
func (w *watched) value(metric string) int { return series(w.get("/metrics"), metric)[metric] }

// awaitFootprint waits until the exporter takes no more than before.
func (w *watched) awaitFootprint(before footprint) {
	w.t.Helper()
	var now footprint
	w.await(w.config+".log", func() string {
		now = w.footprint()
		if now.goroutines > before.goroutines+noiseGoroutines || now.bytes > before.bytes+noiseBytes ||
			now.series > before.series || now.watches > before.watches {
			return fmt.Sprintf("%+v to become again %+v", now, before)
		}
		return ""
	})
	w.t.Logf("before %+v, after %+v", before, now)
}
