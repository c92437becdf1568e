package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

const (
	floorStream, exporterStream = "floor", "exporter" // and what their subjects begin with

	namespace = "default"
	objects   = 50 // that change in turn
	patience  = time.Minute
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// routing is what the exporter is told to do.
func routing(url string) string {
	return fmt.Sprintf(`resources:
  - select: [configmaps]
sinks:
  - name: nats
    nats: {url: %q, stream: %q, subject: "%s.{namespace}.{name}"}
`, url, exporterStream, exporterStream)
}

func nameOf(i int) string { return fmt.Sprintf("latency-%02d", i%objects) }

func create(ctx context.Context, client dynamic.Interface) error {
	for i := range objects {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": nameOf(i)}, "data": map[string]any{"n": "none"},
		}}
		if _, err := client.Resource(configMaps).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// change writes change number i, which says when that was.
func change(ctx context.Context, client dynamic.Interface, i int) error {
	patch := fmt.Appendf(nil, `{"data":{"n":"%d","at":"%d"}}`, i, time.Now().UnixNano())
	_, err := client.Resource(configMaps).Namespace(namespace).Patch(ctx, nameOf(i), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// watch opens a plain watch of what happens from now on.
func watch(ctx context.Context, client dynamic.Interface) (apiwatch.Interface, error) {
	all, err := client.Resource(configMaps).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	return client.Resource(configMaps).Namespace(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: all.GetResourceVersion()})
}

// publish publishes so many changes, each when the one before is acknowledged.
func publish(ctx context.Context, from apiwatch.Interface, js jetstream.JetStream, changes int) error {
	for n := 0; n < changes; {
		e, open := <-from.ResultChan()
		o, is := e.Object.(*unstructured.Unstructured)
		if !open || !is {
			return fmt.Errorf("the plain watch ended after %d of %d changes: %v", n, changes, e.Object)
		}
		if e.Type != apiwatch.Modified {
			continue
		}
		text, err := o.MarshalJSON()
		if err != nil {
			return err
		}
		if _, err := js.Publish(ctx, floorStream+"."+namespace+"."+o.GetName(), text); err != nil {
			return err
		}
		n++
	}
	return nil
}

// mark is what change writes, as it stands in a message.
var mark = regexp.MustCompile(`"at":"(\d+)","n":"(\d+)"`)

// times reads a stream and returns for the changes from one number up to another how long each took until it was stored.
func times(ctx context.Context, js jetstream.JetStream, stream string, from, to int) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	took := make([]time.Duration, to-from)
	for missing := to; missing > 0; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("%d of %d changes are missing: %w", missing, to, err)
		}
		found := mark.FindSubmatch(m.Data())
		if found == nil {
			continue // the object was created
		}
		about, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		at, _ := strconv.ParseInt(string(found[1]), 10, 64) // digits
		n, _ := strconv.Atoi(string(found[2]))
		if missing--; n >= from && n < to {
			took[n-from] = about.Timestamp.Sub(time.Unix(0, at))
		}
	}
	return took, nil
}
