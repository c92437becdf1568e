package main

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	coupons     = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "coupons"}
)

const settingsManifest = `{"apiVersion": "v1", "kind": "ConfigMap", "data": {"theme": "light", "currency": "EUR"}}`

const webManifest = `{"apiVersion": "apps/v1", "kind": "Deployment", "spec": {
	"replicas": 2,
	"selector": {"matchLabels": {"app": "web"}},
	"template": {
		"metadata": {"labels": {"app": "web"}},
		"spec": {"containers": [{"name": "web", "image": "nginx:1.27"}]}
	}
}}`

// couponType is the name of the definition, and how kubectl writes the resource.
const couponType = "coupons.example.com"

const couponDefinition = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": {
	"group": "example.com",
	"scope": "Namespaced",
	"names": {"plural": "coupons", "singular": "coupon", "kind": "Coupon"},
	"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
		"type": "object",
		"properties": {"spec": {"type": "object", "properties": {"percent": {"type": "integer"}, "code": {"type": "string"}}}}
	}}}]
}}`

const couponManifest = `{"apiVersion": "example.com/v1", "kind": "Coupon", "spec": {"code": "SPRING", "percent": 10}}`

const noteManifest = `{"apiVersion": "v1", "kind": "ConfigMap", "data": {"note": "nobody was there to see me"}}`

const itemManifest = `{"apiVersion": "v1", "kind": "ConfigMap", "data": {"stock": "0"}}`

// parsed reads a manifest of this program, which is right or the program is wrong.
func parsed(manifest string) map[string]any {
	var m map[string]any
	if err := json.Unmarshal([]byte(manifest), &m); err != nil {
		panic(err)
	}
	return m
}
