package involved

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

var pod = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}

// podJSON is the metadata of a Pod, as the API server sends it.
func podJSON(i int, label, version, written string) string {
	return fmt.Sprintf(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"web-5d4f8c7b9d-%05d","namespace":"shop",
"uid":"8c1f6b1e-5d0a-4a83-9a3e-%012d","resourceVersion":%q,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"web","n":%q,
"app.kubernetes.io/name":"web","app.kubernetes.io/instance":"shop","app.kubernetes.io/managed-by":"Helm","pod-template-hash":"5d4f8c7b9d"},
"annotations":{"checksum/config":"6f1f6b0e2f564cf5a1f06c3d5a0b8d0e6f1f6b0e2f564cf5a1f06c3d5a0b8d0e","prometheus.io/scrape":"true"},
"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-5d4f8c7b9d","uid":"u2","controller":true,"blockOwnerDeletion":true}],
"managedFields":[{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":%q,"fieldsType":"FieldsV1",
"fieldsV1":{"f:metadata":{"f:labels":{"f:app":{}}}}},{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-02T09:04:09Z",
"fieldsType":"FieldsV1","fieldsV1":{"f:status":{}},"subresource":"status"}]}}`, i, i, version, label, written)
}

// knownPods returns objects that watched some Pods.
func knownPods(t testing.TB, count int) *objects {
	t.Helper()
	x := New(Config{Rules: []selection.Rule{everything}, Redact: passThrough})
	o := &objects{Index: x, seen: "1000000", shared: true, byKey: map[string]objectState{}}
	o.endpoint = &apiserver.Endpoint{Scope: selection.Scope{Resource: pod, Namespaced: true}}
	o.textOf = func(o *deltas.Object) (string, error) { return x.textOf(pod, o, everything.InvolvedObject) }
	for i := range count {
		o.observe(t, watch.Added, podJSON(i, "1", fmt.Sprint(1000+i), "2026-01-02T03:04:05Z"))
	}
	return o
}

var metadataDecoder = decode.New(pod, true)

func (o *objects) observe(t testing.TB, typ watch.EventType, text string) {
	t.Helper()
	object, err := metadataDecoder.Object([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.apply([]deltas.Event{{Type: typ, Object: object}}, ""); err != nil {
		t.Fatal(err)
	}
}

// TestAnotherStoreProvesNothingByVersions: Events in an etcd of their own have versions that do not compare with those of
// Pods. Then a write in an earlier second than the Event proves what its object had.
func TestAnotherStoreProvesNothingByVersions(t *testing.T) {
	o := knownPods(t, 1)
	a := &about{version: "5000", created: "2026-01-02T03:04:05Z"}
	a.reference = reference{Name: "web-5d4f8c7b9d-00000", Namespace: "shop", UID: fmt.Sprintf("8c1f6b1e-5d0a-4a83-9a3e-%012d", 0)}
	if _, reason, _ := o.look(a); reason != "" {
		t.Errorf("with versions of one store it is unknown: %s", reason)
	}
	o.shared = false
	if _, reason, _ := o.look(a); reason != reasonWritten {
		t.Errorf("in the second of the write the reason is %q", reason)
	}
	a.created = "2026-01-02T03:04:06Z"
	if text, reason, _ := o.look(a); reason != "" || !strings.Contains(text, `"n":"1"`) {
		t.Errorf("in a later second it is %q, %s", text, reason)
	}
}

// TestMemoryIsBounded: 20,000 Pods take less than 40 MB, however often they are written, and deleted ones take none.
func TestMemoryIsBounded(t *testing.T) {
	const count = 20_000
	before := heap()
	o := knownPods(t, count)
	used := heap() - before
	if t.Logf("%d Pods take %.1f MB", count, float64(used)/(1<<20)); used > 40<<20 {
		t.Error("that is too much")
	}
	for i := range 1000 {
		o.observe(t, watch.Modified, podJSON(i%10, fmt.Sprint(i), fmt.Sprint(2_000_000+i), "2026-01-02T03:04:05Z"))
	}
	for i := range 10 {
		o.observe(t, watch.Deleted, podJSON(i, "", "9000000", ""))
	}
	bytes := 0
	for _, s := range o.byKey {
		bytes += len(s.text)
	}
	if o.bytes != bytes || len(o.byKey) != count-10 {
		t.Errorf("%d objects are kept; %d bytes are counted, and %d are kept", len(o.byKey), o.bytes, bytes)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestEventsWaitTogether: Events that were read together wait for the watch of their objects once, and old ones not at all.
func TestEventsWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := knownPods(t, 1)
		read := time.Now()
		for range 100 {
			a := &about{version: "2000000", read: read, reference: reference{Name: "web-5d4f8c7b9d-00000", Namespace: "shop"}}
			if _, reason, err := o.find(t.Context(), a); reason != "" || err != nil {
				t.Fatalf("%q, %v", reason, err)
			}
		}
		if waited := time.Since(read); waited != lagOfKnown {
			t.Errorf("100 Events waited for %s", waited)
		}
	})
}
