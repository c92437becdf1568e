package involved

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// cluster is a real control plane, and a client that writes to it.
type cluster struct {
	t      *testing.T
	config *rest.Config
	writer *http.Client
	client *apiserver.Client
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	plane := controlplane.ForTest(t)
	c := &cluster{t: t}
	var err error
	if c.config, err = clientcmd.BuildConfigFromFlags("", plane.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	if c.writer, err = rest.HTTPClientFor(c.config); err != nil {
		t.Fatal(err)
	}
	if c.client, err = apiserver.NewClient(c.config, "test"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.writer.CloseIdleConnections()
		c.client.Close()
	})
	return c
}

// write sends an object, and returns it as it is stored.
func (c *cluster) write(method, path, body string) (stored metav1.PartialObjectMetadata) {
	c.t.Helper()
	request, err := http.NewRequest(method, c.config.Host+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[method == "PATCH"])
	response, err := c.writer.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 300 {
		c.t.Fatalf("%s %s: %s %s %v", method, path, response.Status, text, err)
	}
	if err := json.Unmarshal(text, &stored); err != nil {
		c.t.Fatal(err)
	}
	return stored
}

const pods = "/api/v1/namespaces/default/pods"

// createPod creates a Pod with a label and a controller.
func (c *cluster) createPod(name, label string) metav1.PartialObjectMetadata {
	c.t.Helper()
	return c.write("POST", pods, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"n":%q},"annotations":{"a":"b","json":"{\"x\":1}"},
		"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"other","uid":"u1"},
		{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"rs","uid":"u2","controller":true}]},
		"spec":{"containers":[{"name":"c","image":"i"}]}}`, name, label))
}

func (c *cluster) labelPod(name, label string) {
	c.t.Helper()
	c.write("PATCH", pods+"/"+name, fmt.Sprintf(`{"metadata":{"labels":{"n":%q}}}`, label))
}

// createEvent creates an Event about a Pod.
func (c *cluster) createEvent(name, pod, uid, want string) {
	c.t.Helper()
	c.write("POST", "/api/v1/namespaces/default/events", fmt.Sprintf(`{"metadata":{"name":%q},"involvedObject":{"apiVersion":"v1","kind":"Pod",
		"namespace":"default","name":%q,"uid":%q},"reason":"Test","message":%q,"type":"Normal","lastTimestamp":%q}`,
		name, pod, uid, want, time.Now().UTC().Format(time.RFC3339)))
}

// completed is what a record has of an Event.
type completed struct {
	Message        string `json:"message"` // the label that the Pod had
	Note           string `json:"note"`    // that of events.k8s.io
	InvolvedObject *shown `json:"involvedObject"`
	Regarding      *shown `json:"regarding"`
}

type shown struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	Owner       *owner            `json:"owner"`
	Unknown     string            `json:"unknown"`
}

var everything = selection.Rule{Select: []string{"events"}, InvolvedObject: selection.InvolvedObject{Labels: true, Annotations: true, Owner: true}}

// passThrough returns objects as they are.
func passThrough(_ event.Resource, o *deltas.Object) ([]byte, error) { return o.Raw, nil }

// startIndex starts an index and returns a function that completes an Event as it was read.
func (c *cluster) startIndex(rule selection.Rule, redact func(event.Resource, *deltas.Object) ([]byte, error)) (complete func(*deltas.Object) completed) {
	x := New(Config{Client: c.client, Rules: []selection.Rule{rule}, Redact: redact})
	c.t.Cleanup(x.Start(context.Background()))
	var last []byte
	events := event.Resource{Version: "v1", Resource: "events"}
	to := x.WrapAppend(0, func(_ context.Context, o event.Observation) error {
		last = o.Changes[0].After
		return nil
	})
	return func(o *deltas.Object) (e completed) {
		c.t.Helper()
		change := &event.Change{Type: event.Added, ResourceVersion: o.ResourceVersion, After: o.Raw, ObservedAt: time.Now()}
		if err := to(context.Background(), event.Observation{Resource: events, Changes: []*event.Change{change}}); err != nil {
			c.t.Fatal(err)
		}
		if err := json.Unmarshal(last, &e); err != nil {
			c.t.Fatalf("%v: %s", err, last)
		}
		if e.InvolvedObject == nil {
			e.InvolvedObject = e.Regarding
		}
		if restored := Remove(last, ""); !bytes.Equal(restored, o.Raw) {
			c.t.Errorf("without what was added it is %s, and it was %s", restored, o.Raw)
		}
		return e
	}
}

// watchEvents returns the Events of an API version as they are read from now on.
func (c *cluster) watchEvents(group, version string) <-chan *deltas.Object {
	c.t.Helper()
	endpoint, err := c.client.Endpoint(selection.Scope{Resource: event.Resource{Group: group, Version: version, Resource: "events", Kind: "Event"}})
	if err != nil {
		c.t.Fatal(err)
	}
	position, err := endpoint.Newest(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	watch, err := endpoint.Watch(context.Background(), nil, metav1.ListOptions{ResourceVersion: position})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(watch.Stop)
	events := make(chan *deltas.Object, 10_000)
	go func() {
		defer close(events)
		for b := range watch.Batches {
			for _, e := range b.Events {
				events <- e.Object
			}
		}
	}()
	return events
}

// TestEventsHaveWhatTheirPodsHadThen: the label of each Pod changes before and after each of its Events, and some Pods are
// deleted and created again under the same name.
func TestEventsHaveWhatTheirPodsHadThen(t *testing.T) {
	c := startCluster(t)
	const count = 1000
	for name, events := range map[string]<-chan *deltas.Object{"core": c.watchEvents("", "v1"), "events.k8s.io": c.watchEvents("events.k8s.io", "v1")} {
		complete := c.startIndex(everything, passThrough)
		uids := [10]string{}
		written := make(chan struct{})
		go func() {
			defer close(written)
			for i := range count {
				pod := i % len(uids)
				at, label := fmt.Sprintf("%s-%d", strings.ReplaceAll(name, ".", "-"), pod), fmt.Sprint(i)
				switch {
				case uids[pod] == "":
					uids[pod] = string(c.createPod(at, label).UID)
				case i%7 == 0:
					c.write("DELETE", pods+"/"+at+"?gracePeriodSeconds=0", "")
					uids[pod] = string(c.createPod(at, label).UID)
				default:
					c.labelPod(at, label)
				}
				c.createEvent(fmt.Sprintf("%s.%d", at, i), at, uids[pod], label)
				if i%3 == 0 {
					c.labelPod(at, "later")
				}
			}
		}()
		right := 0
		for seen := 0; seen < count; {
			o := <-events
			if o == nil {
				t.Fatal("the watch of the Events has ended")
			}
			if !strings.HasPrefix(o.Name, strings.ReplaceAll(name, ".", "-")) {
				continue
			}
			seen++
			e := complete(o)
			is := e.InvolvedObject
			if is.Labels["n"] == e.Message+e.Note && is.Annotations["a"] == "b" && is.Owner != nil && *is.Owner == (owner{"apps/v1", "ReplicaSet", "rs", "u2"}) {
				right++
			} else if seen-right < 10 {
				t.Errorf("%s, Event %s: %+v, and the label was %q", name, o.Name, is, e.Message+e.Note)
			}
		}
		if <-written; right != count {
			t.Errorf("%s: %d of %d are right", name, right, count)
		}
	}
}

// TestPastIsReadFromTheStore: an index that starts after a Pod was changed or deleted asks for it at the version of each.
func TestPastIsReadFromTheStore(t *testing.T) {
	c := startCluster(t)
	events := c.watchEvents("", "v1")
	changed, gone := c.createPod("changed", "before"), c.createPod("gone", "g")
	c.createEvent("changed", "changed", string(changed.UID), "")
	c.createEvent("gone", "gone", string(gone.UID), "")
	c.createEvent("another", "changed", "another", "")
	c.write("POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"foreign"},"involvedObject":{"apiVersion":"no.such/v1","kind":"Thing",
		"namespace":"default","name":"x"},"reason":"Test"}`)
	c.labelPod("changed", "after")
	c.write("DELETE", pods+"/gone?gracePeriodSeconds=0", "")
	complete := c.startIndex(everything, passThrough)
	for want := map[string]string{
		"changed": "before", "gone": "g", "another": reasonGone, "foreign": `the API server serves no kind "Thing" of "no.such/v1"`,
	}; len(want) > 0; {
		o := <-events
		e := complete(o).InvolvedObject
		if is := e.Labels["n"] + e.Unknown; want[o.Name] != "" && is != want[o.Name] {
			t.Errorf("Event %s has %q, want %q", o.Name, is, want[o.Name])
		}
		delete(want, o.Name)
	}
}

// TestMissingRightIsAReason: Events of kinds that cannot be read are not held up.
func TestMissingRightIsAReason(t *testing.T) {
	c := startCluster(t)
	events := c.watchEvents("", "v1")
	c.createEvent("p", "p", string(c.createPod("p", "x").UID), "")
	config := rest.CopyConfig(c.config)
	config.Impersonate.UserName = "nobody"
	var err error
	if c.client, err = apiserver.NewClient(config, "test"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	complete := c.startIndex(everything, passThrough)
	for {
		o := <-events
		if began := time.Now(); o.Name != "p" {
			continue
		} else if e := complete(o).InvolvedObject; !strings.Contains(e.Unknown, "pods: list is forbidden") || time.Since(began) >= patience {
			t.Errorf("%q after %s", e.Unknown, time.Since(began))
		}
		return
	}
}
