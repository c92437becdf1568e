package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kubecdc/kubecdc/test/bench/pipeline"
)

// newType is the plural of a type with a group of its own.
type newType string

func (n newType) group() string { return string(n) + ".bench.kubecdc.io" }
func (n newType) name() string  { return string(n) + "." + n.group() }

// come defines the type, creates an object as soon as that is possible, waits until it is emitted, and takes the type away.
func (n newType) come(ctx context.Context, client dynamic.Interface, told *os.File) (t took, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := client.Resource(pipeline.Definitions).Create(ctx, pipeline.Definition(n.group(), string(n), "New"), metav1.CreateOptions{}); err != nil {
		return t, err
	}
	defined := time.Now()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": n.group() + "/v1", "kind": "New", "metadata": map[string]any{"name": "first"},
	}}
	objects := client.Resource(schema.GroupVersionResource{Group: n.group(), Version: "v1", Resource: string(n)})
	if err := pipeline.Until(ctx, look, func() (bool, error) {
		_, err := objects.Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err) { // it is not served yet
			return false, nil
		}
		return err == nil, err
	}); err != nil {
		return t, fmt.Errorf("create an object of %s: %w", n, err)
	}
	created := time.Now()
	if err := n.await(ctx, told); err != nil {
		return t, fmt.Errorf("the first change of %s: %w", n, err)
	}
	t = took{defined: time.Since(defined), created: time.Since(created)}
	return t, client.Resource(pipeline.Definitions).Delete(ctx, n.name(), metav1.DeleteOptions{})
}

// await reads records until one is of the type's object.
func (n newType) await(ctx context.Context, told *os.File) error {
	var text strings.Builder
	return pipeline.Until(ctx, look, func() (bool, error) {
		if _, err := io.Copy(&text, told); err != nil {
			return false, err
		}
		for line := range strings.Lines(text.String()) {
			if strings.HasSuffix(line, "\n") && strings.Contains(line, fmt.Sprintf(`"resource":%q`, string(n))) && strings.Contains(line, `"name":"first"`) {
				return true, nil
			}
		}
		return false, nil
	})
}
