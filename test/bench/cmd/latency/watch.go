package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/kubecdc/kubecdc/test/bench/stamped"
)

const (
	floorStream, exporterStream = "floor", "exporter" // and what their subjects begin with
	namespace                   = "default"
)

// watch opens a plain watch of what happens from now on.
func watch(ctx context.Context, client dynamic.Interface) (apiwatch.Interface, error) {
	all, err := client.Resource(stamped.ConfigMaps).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	return client.Resource(stamped.ConfigMaps).Namespace(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: all.GetResourceVersion()})
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
