package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// retryAfter is the pause before a failed write is tried again.
const retryAfter = 50 * time.Millisecond

var (
	namespaces      = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	definitions     = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	clusterRoles    = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	clusterBindings = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
	accessReviews   = schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"}
)

// Cluster writes objects. Its methods may be called concurrently and try until they succeed or ctx ends, except where the
// API server rejects the object itself.
type Cluster struct {
	client dynamic.Interface
	raw    rest.Interface
}

// Connect returns the cluster of a kubeconfig. It contacts nothing.
func Connect(kubeconfig string) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no limit on this side
	config.UserAgent = "e2e-workload"
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	raw, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{client: client, raw: raw.RESTClient()}, nil
}

// Metrics returns the API server's own metrics, as Prometheus reads them.
func (c *Cluster) Metrics(ctx context.Context) (text string, err error) {
	err = c.until(ctx, func() error {
		bytes, err := c.raw.Get().AbsPath("/metrics").DoRaw(ctx)
		text = string(bytes)
		return err
	})
	return text, err
}

// Create creates an object of a kind.
func (c *Cluster) Create(ctx context.Context, kind Kind, namespace, name string) error {
	o := kind.Object()
	o.SetNamespace(namespace)
	o.SetName(name)
	return c.create(ctx, kind.Resource, namespace, o)
}

// CreateSelected creates an object that carries [SelectedLabel].
func (c *Cluster) CreateSelected(ctx context.Context, kind Kind, namespace, name string) error {
	o := kind.Object()
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetLabels(map[string]string{SelectedLabel: "yes"})
	return c.create(ctx, kind.Resource, namespace, o)
}

// Change makes the change that belongs to step.
func (c *Cluster) Change(ctx context.Context, kind Kind, namespace, name string, step int) error {
	return Persist(ctx, func() error {
		_, err := c.client.Resource(kind.Resource).Namespace(namespace).
			Patch(ctx, name, types.MergePatchType, []byte(kind.Change(step)), metav1.PatchOptions{})
		return err
	})
}

// Patch makes any change, written as a JSON merge patch.
func (c *Cluster) Patch(ctx context.Context, kind Kind, namespace, name, patch string) error {
	kind.Change = func(int) string { return patch }
	return c.Change(ctx, kind, namespace, name, 0)
}

// Delete deletes an object at once.
func (c *Cluster) Delete(ctx context.Context, kind Kind, namespace, name string) error {
	now := int64(0)
	return Persist(ctx, func() error {
		err := c.client.Resource(kind.Resource).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// CreateNamespace creates a namespace.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("v1")
	o.SetKind("Namespace")
	o.SetName(name)
	return c.create(ctx, namespaces, "", o)
}

// Definition is a custom resource.
type Definition struct {
	Group, Plural, Kind string
	// Versions that are served; the first is the stored one. Without any it is "v1" alone.
	Versions []string
	// ClusterScoped objects live in no namespace.
	ClusterScoped bool
	// Schema of each version, in place of free content.
	Schema map[string]any
	// Schemas of single versions, in place of Schema.
	Schemas map[string]map[string]any
	// Unserved are those of the versions that are kept, and not served.
	Unserved []string
}

// Define creates the definition of a custom resource that lives in namespaces and waits until it is served.
func (c *Cluster) Define(ctx context.Context, group, plural, kind string) error {
	return c.Install(ctx, Definition{Group: group, Plural: plural, Kind: kind})
}

// Install creates a definition and waits until all its versions are served.
func (c *Cluster) Install(ctx context.Context, d Definition) error {
	if len(d.Versions) == 0 {
		d.Versions = []string{"v1"}
	}
	if err := c.create(ctx, definitions, "", d.object()); err != nil {
		return err
	}
	for _, version := range d.Versions {
		served := c.client.Resource(schema.GroupVersionResource{Group: d.Group, Version: version, Resource: d.Plural})
		if err := c.until(ctx, func() error {
			_, err := served.List(ctx, metav1.ListOptions{Limit: 1})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// Redefine replaces the versions of a definition. The API server serves them a moment later.
func (c *Cluster) Redefine(ctx context.Context, d Definition) error {
	if len(d.Versions) == 0 {
		d.Versions = []string{"v1"}
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": d.versions()}})
	if err != nil {
		return err
	}
	return Persist(ctx, func() error {
		_, err := c.client.Resource(definitions).Patch(ctx, d.Plural+"."+d.Group, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func (d Definition) versions() (all []any) {
	for i, name := range d.Versions {
		content := d.Schemas[name]
		if content == nil {
			content = d.Schema
		}
		if content == nil {
			content = map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
		}
		all = append(all, map[string]any{
			"name": name, "served": !slices.Contains(d.Unserved, name), "storage": i == 0,
			"subresources": map[string]any{"status": map[string]any{}}, "schema": map[string]any{"openAPIV3Schema": content},
		})
	}
	return all
}

func (d Definition) object() *unstructured.Unstructured {
	scope := "Namespaced"
	if d.ClusterScoped {
		scope = "Cluster"
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": d.Group, "scope": scope, "names": map[string]any{"plural": d.Plural, "kind": d.Kind}, "versions": d.versions(),
	}}}
	o.SetAPIVersion("apiextensions.k8s.io/v1")
	o.SetKind("CustomResourceDefinition")
	o.SetName(d.Plural + "." + d.Group)
	return o
}

// Serves reports whether the API server knows a kind.
func (c *Cluster) Serves(ctx context.Context, kind Kind) (served bool, err error) {
	err = c.until(ctx, func() error {
		_, err := c.client.Resource(kind.Resource).List(ctx, metav1.ListOptions{Limit: 1})
		served = err == nil
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return served, err
}

// List reads all objects of a kind; what is not served has none.
func (c *Cluster) List(ctx context.Context, kind Kind) (all []unstructured.Unstructured, err error) {
	err = c.until(ctx, func() error {
		list, err := c.client.Resource(kind.Resource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			all = list.Items
		}
		return err
	})
	return all, err
}

// Clear deletes all objects of a kind in a namespace; "" stands for those without one.
func (c *Cluster) Clear(ctx context.Context, kind Kind, namespace string) error {
	return Persist(ctx, func() error {
		return c.client.Resource(kind.Resource).Namespace(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
}

// Undefine deletes the definition of a custom resource, and with it all its objects.
func (c *Cluster) Undefine(ctx context.Context, group, plural string) error {
	return Persist(ctx, func() error {
		err := c.client.Resource(definitions).Delete(ctx, plural+"."+group, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// Allow lets a user read kinds in all namespaces. role names the two objects for it; Allow with the same role and
// more kinds adds nothing, so take another role.
func (c *Cluster) Allow(ctx context.Context, role, user string, kinds ...Kind) error {
	var rules []any
	for _, k := range kinds {
		rules = append(rules, map[string]any{
			"apiGroups": []any{k.Resource.Group}, "resources": []any{k.Resource.Resource}, "verbs": []any{"get", "list", "watch"},
		})
	}
	r := &unstructured.Unstructured{Object: map[string]any{"rules": rules}}
	r.SetAPIVersion("rbac.authorization.k8s.io/v1")
	r.SetKind("ClusterRole")
	r.SetName(role)
	b := &unstructured.Unstructured{Object: map[string]any{
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}},
	}}
	b.SetAPIVersion("rbac.authorization.k8s.io/v1")
	b.SetKind("ClusterRoleBinding")
	b.SetName(role)
	return errors.Join(c.create(ctx, clusterRoles, "", r), c.create(ctx, clusterBindings, "", b))
}

// Revoke takes back what Allow gave under the name of the role, and waits until the API server goes by it: it still opens
// watches of the kind for the user before.
func (c *Cluster) Revoke(ctx context.Context, role, user string, kind Kind) error {
	if err := Persist(ctx, func() error {
		err := c.client.Resource(clusterBindings).Delete(ctx, role, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}); err != nil {
		return err
	}
	question := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"user": user, "resourceAttributes": map[string]any{
		"verb": "watch", "group": kind.Resource.Group, "resource": kind.Resource.Resource,
	}}}}
	question.SetAPIVersion(accessReviews.GroupVersion().String())
	question.SetKind("SubjectAccessReview")
	return c.until(ctx, func() error {
		answer, err := c.client.Resource(accessReviews).Create(ctx, question, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if allowed, _, err := unstructured.NestedBool(answer.Object, "status", "allowed"); allowed || err != nil {
			return errors.Join(fmt.Errorf("%s may still watch %s", user, kind.Resource.Resource), err)
		}
		return nil
	})
}

// create creates an object. An existing one counts as created, as if the answer was lost.
func (c *Cluster) create(ctx context.Context, resource schema.GroupVersionResource, namespace string, o *unstructured.Unstructured) error {
	return Persist(ctx, func() error {
		_, err := c.client.Resource(resource).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// Persist tries until a write is done, or wrong in itself. A write with a lost answer is made again.
func Persist(ctx context.Context, write func() error) error {
	for {
		err := write()
		if err == nil || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return err
		}
		if err := pause(ctx, err); err != nil {
			return err
		}
	}
}

// until tries until the question is answered.
func (c *Cluster) until(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if err := pause(ctx, err); err != nil {
			return err
		}
	}
}

// pause waits a moment; when ctx ends it returns what had failed.
func pause(ctx context.Context, failed error) error {
	timer := time.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", context.Cause(ctx), failed)
	case <-timer.C:
		return nil
	}
}
