package main

import (
	"context"
	"errors"
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
)

// newType is the plural of a type with a group of its own.
type newType string

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func (n newType) group() string { return string(n) + ".bench.kubecdc.io" }
func (n newType) name() string  { return string(n) + "." + n.group() }

func (n newType) definition() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": n.name()},
		"spec": map[string]any{
			"group": n.group(), "scope": "Cluster", "names": map[string]any{"plural": string(n), "kind": "New"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}
}

// come defines the type, creates an object as soon as that is possible, waits until it is emitted, and takes the type away.
func (n newType) come(ctx context.Context, client dynamic.Interface, told *os.File) (t took, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := client.Resource(definitions).Create(ctx, n.definition(), metav1.CreateOptions{}); err != nil {
		return t, err
	}
	defined := time.Now()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": n.group() + "/v1", "kind": "New", "metadata": map[string]any{"name": "first"},
	}}
	objects := client.Resource(schema.GroupVersionResource{Group: n.group(), Version: "v1", Resource: string(n)})
	if err := until(ctx, func() (bool, error) {
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
	return t, client.Resource(definitions).Delete(ctx, n.name(), metav1.DeleteOptions{})
}

// await reads records until one is of the type's object.
func (n newType) await(ctx context.Context, told *os.File) error {
	var text strings.Builder
	return until(ctx, func() (bool, error) {
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

// until asks again and again until the answer is yes.
func until(ctx context.Context, ask func() (bool, error)) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		yes, err := ask()
		if yes || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(errors.New("it did not come"), ctx.Err())
		}
	}
}
