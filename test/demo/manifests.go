package main

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	deals       = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "deals"}
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

// dealType is the name of the definition, and how kubectl writes the resource.
const dealType = "deals.example.com"

const dealDefinition = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": {
	"group": "example.com",
	"scope": "Namespaced",
	"names": {"plural": "deals", "singular": "deal", "kind": "Deal"},
	"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
		"type": "object",
		"properties": {"spec": {"type": "object", "properties": {"percent": {"type": "integer"}, "what": {"type": "string"}}}}
	}}}]
}}`

const dealManifest = `{"apiVersion": "example.com/v1", "kind": "Deal", "spec": {"what": "umbrellas", "percent": 10}}`

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
