package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"golang.org/x/sync/errgroup"

	"github.com/kubecdc/kubecdc/test/bench/pipeline"
)

const (
	group   = "watermarks.kubecdc.io"
	each    = 10 // objects of each type
	writers = 16
)

// cluster has a few objects of each of its types.
type cluster struct{ objects []dynamic.ResourceInterface }

func name(i int) string { return fmt.Sprint("object-", i) }

func fill(ctx context.Context, client dynamic.Interface, count int) (*cluster, error) {
	c := &cluster{}
	for n := range count {
		kind := fmt.Sprint("Thing", n)
		objects, err := pipeline.Serve(ctx, client, group, fmt.Sprint("things", n), kind)
		if err != nil {
			return nil, fmt.Errorf("define type %d: %w", n, err)
		}
		for i := range each {
			o := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": group + "/v1", "kind": kind, "metadata": map[string]any{"name": name(i)},
			}}
			if _, err := objects.Create(ctx, o, metav1.CreateOptions{}); err != nil {
				return nil, err
			}
		}
		c.objects = append(c.objects, objects)
	}
	return c, nil
}

// change changes objects of all types in turn, at a rate, until a moment, and returns how many.
func (c *cluster) change(ctx context.Context, rate int, until time.Time) (changes int, err error) {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(writers)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for ; time.Now().Before(until) && ctx.Err() == nil; changes++ {
		n, i := changes%len(c.objects), changes/len(c.objects)%each
		patch := fmt.Appendf(nil, `{"data":{"n":"%d"}}`, changes)
		all.Go(func() error {
			_, err := c.objects[n].Patch(ctx, name(i), types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
		<-tick.C
	}
	return changes, all.Wait()
}
