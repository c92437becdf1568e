package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// cluster changes objects and notes each revision that the API server confirms in the account.
type cluster struct {
	client  dynamic.Interface
	account *account
}

// newCluster returns a client that makes at most that many requests a second; 0 sets no limit.
func newCluster(c *controlplane.ControlPlane, account *account, perSecond float32) (*cluster, error) {
	config := &rest.Config{
		Host: c.URL(), BearerToken: c.AdminToken(), TLSClientConfig: rest.TLSClientConfig{CAFile: c.CAFile()},
		UserAgent: "demo", QPS: -1,
	}
	if perSecond > 0 {
		config.QPS, config.Burst = perSecond, 1
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return &cluster{client: client, account: account}, nil
}

// object is one that lives. Its UID is its own, so that a namesake is another object.
type object struct {
	resource  schema.GroupVersionResource
	namespace string
	name      string
	uid       types.UID
}

func (o object) String() string { return o.resource.Resource + " " + o.namespace + "/" + o.name }

// namespace creates a namespace. Namespaces are not among what the demo watches.
func (c *cluster) namespace(ctx context.Context, name string) error {
	o := &unstructured.Unstructured{Object: parsed(`{"apiVersion": "v1", "kind": "Namespace"}`)}
	o.SetName(name)
	_, err := c.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).
		Create(ctx, o, metav1.CreateOptions{})
	return err
}

// create creates an object from its manifest, as the user.
func (c *cluster) create(ctx context.Context, who string, resource schema.GroupVersionResource, namespace, name, manifest string) (object, error) {
	body := &unstructured.Unstructured{Object: parsed(manifest)}
	body.SetName(name)
	o := object{resource: resource, namespace: namespace, name: name}
	created, err := c.client.Resource(resource).Namespace(namespace).Create(ctx, body, metav1.CreateOptions{FieldManager: who})
	if err != nil {
		return o, fmt.Errorf("create %v: %w", o, err)
	}
	o.uid = created.GetUID()
	c.note(o, created)
	return o, nil
}

// patch changes an object, or one of its subresources, as the user.
func (c *cluster) patch(ctx context.Context, who string, o object, patch string, subresource ...string) error {
	changed, err := c.client.Resource(o.resource).Namespace(o.namespace).
		Patch(ctx, o.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: who}, subresource...)
	if err != nil {
		return fmt.Errorf("change %v: %w", o, err)
	}
	c.note(o, changed)
	return nil
}

// note notes a revision.
func (c *cluster) note(o object, answer *unstructured.Unstructured) {
	c.account.write(revision{string(answer.GetUID()), answer.GetResourceVersion()}, o.String())
}

// remove deletes an object at once.
func (c *cluster) remove(ctx context.Context, o object) error {
	at := int64(0)
	err := c.client.Resource(o.resource).Namespace(o.namespace).Delete(ctx, o.name, metav1.DeleteOptions{
		GracePeriodSeconds: &at, Preconditions: &metav1.Preconditions{UID: &o.uid},
	})
	if err != nil {
		return fmt.Errorf("delete %v: %w", o, err)
	}
	c.account.write(revision{string(o.uid), ended}, o.String())
	return nil
}
