package workload

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a kind of object that the workload writes.
type Kind struct {
	Resource schema.GroupVersionResource
	// Object returns the body to create, without namespace and name.
	Object func() *unstructured.Unstructured
	// Change returns a JSON merge patch that changes an object of this kind; another step gives another change.
	Change func(step int) string
}

// WidgetGroup is the API group of the custom resource "widgets".
const WidgetGroup = "demo.kubecdc.io"

// The kinds.
var (
	ConfigMaps = Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Object:   body("v1", "ConfigMap", map[string]any{"data": map[string]any{"step": "0"}}),
		Change:   func(step int) string { return fmt.Sprintf(`{"data":{"step":"%d"}}`, step) },
	}
	Deployments = Kind{
		Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		Object: body("apps/v1", "Deployment", map[string]any{"spec": map[string]any{
			"replicas": int64(0),
			"selector": map[string]any{"matchLabels": map[string]any{"app": "e2e"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "e2e"}},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "example.invalid/c:1"}}},
			},
		}}),
		Change: func(step int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, step) },
	}
	Services = Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "services"},
		Object: body("v1", "Service", map[string]any{"spec": map[string]any{
			"clusterIP": "None",
			"selector":  map[string]any{"app": "e2e"},
			"ports":     []any{map[string]any{"port": int64(80)}},
		}}),
		Change: func(step int) string { return fmt.Sprintf(`{"spec":{"selector":{"step":"%d"}}}`, step) },
	}
	Pods = Kind{
		Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		Object: body("v1", "Pod", map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "c", "image": "example.invalid/c:1"}},
		}}),
		Change: func(step int) string { return fmt.Sprintf(`{"metadata":{"annotations":{"e2e/step":"%d"}}}`, step) },
	}
	Widgets = Kind{
		Resource: schema.GroupVersionResource{Group: WidgetGroup, Version: "v1", Resource: "widgets"},
		Object:   body(WidgetGroup+"/v1", "Widget", map[string]any{"spec": map[string]any{"size": int64(0)}}),
		Change:   func(step int) string { return fmt.Sprintf(`{"spec":{"size":%d}}`, step) },
	}
)

// AllKinds are five kinds, one of them custom.
func AllKinds() []Kind { return []Kind{ConfigMaps, Deployments, Services, Pods, Widgets} }

func body(apiVersion, kind string, content map[string]any) func() *unstructured.Unstructured {
	return func() *unstructured.Unstructured {
		o := (&unstructured.Unstructured{Object: content}).DeepCopy()
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		return o
	}
}
