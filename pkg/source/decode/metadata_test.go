package decode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
)

const wholeDeployment = `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"shop","uid":"u-1",` +
	`"resourceVersion":"7","generation":3,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"\u003cweb\u003e"},` +
	`"managedFields":[{"manager":"kubectl","operation":"Apply","apiVersion":"apps/v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}]},` +
	`"spec":{"replicas":3},"status":{}}`

const bareDeployment = `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"shop","uid":"u-1",` +
	`"resourceVersion":"7","generation":3,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"\u003cweb\u003e"}}}`

// TestMetadataIsIndependentOfItsForm: in each form, an object has the same bytes, and its changes the same class and actor.
func TestMetadataIsIndependentOfItsForm(t *testing.T) {
	deployments := event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
	whole, err := New(deployments, false).Object([]byte(wholeDeployment))
	if err != nil {
		t.Fatal(err)
	}
	d := New(deployments, true)
	partial := strings.Replace(strings.Replace(wholeDeployment, `"Deployment"`, `"PartialObjectMetadata"`, 1), "apps/v1", "meta.k8s.io/v1", 1)
	partial = strings.TrimSuffix(partial, `,"spec":{"replicas":3},"status":{}}`) + "}"
	var objects []*deltas.Object
	for _, b := range []string{partial, wholeDeployment} {
		o, err := d.Object([]byte(b))
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	_, listed, err := decodePage(d, fmt.Sprintf(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[%s]}`, partial))
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range append(objects, listed...) {
		if string(o.Raw) != bareDeployment {
			t.Errorf("%d:\n%s\nwant\n%s", i, o.Raw, bareDeployment)
		}
		if o.Key() != "shop/web" || o.UID != "u-1" || o.ResourceVersion != "7" || o.Generation != 3 {
			t.Errorf("%d: %+v", i, o)
		}
		if o.Summary != objects[0].Summary || o.Names != whole.Names {
			t.Errorf("%d: summary %q, names %q", i, o.Summary, o.Names)
		}
	}
	if objects[0].Summary == whole.Summary {
		t.Error("the summary does not record that only metadata was read")
	}
}
