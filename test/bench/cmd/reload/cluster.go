package main

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kubecdc/kubecdc/test/bench/pipeline"
)

const (
	group   = "reload.kubecdc.io"
	clients = 32 // that write objects at a time
	probe   = "probe"
)

// cluster has objects of types of one group.
type cluster struct {
	client dynamic.Interface
	types  int
}

func plural(n int) string { return fmt.Sprintf("things%d", n) }

func (c *cluster) objects(n int) dynamic.ResourceInterface {
	return c.client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural(n)})
}

func object(n int, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1", "kind": fmt.Sprintf("Thing%d", n), "metadata": map[string]any{"name": name},
	}}
}

// fill defines the types and creates the objects, and one that the measurement changes.
func (c *cluster) fill(ctx context.Context, objects int) error {
	for n := range c.types {
		if _, err := pipeline.Serve(ctx, c.client, group, plural(n), fmt.Sprintf("Thing%d", n)); err != nil {
			return fmt.Errorf("define type %d: %w", n, err)
		}
	}
	if _, err := c.objects(0).Create(ctx, object(0, probe), metav1.CreateOptions{}); err != nil {
		return err
	}
	numbers := make(chan int)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for i := range numbers {
				n := i % c.types
				err := pipeline.Until(ctx, look, func() (bool, error) {
					_, err := c.objects(n).Create(ctx, object(n, fmt.Sprintf("object-%d", i)), metav1.CreateOptions{})
					if apierrors.IsTooManyRequests(err) {
						return false, nil
					}
					return err == nil, err
				})
				if err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for i := 1; i < objects && ctx.Err() == nil; i++ {
		select {
		case numbers <- i:
		case <-ctx.Done():
		}
	}
	close(numbers)
	all.Wait()
	return context.Cause(ctx)
}
