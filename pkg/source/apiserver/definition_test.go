package apiserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

// TestMetadataOfADefinitionIdentifiesIt edits a large definition on a real API server: its metadata alone shows each edit,
// and is small.
func TestMetadataOfADefinitionIdentifiesIt(t *testing.T) {
	client, err := NewClient(configOf(t, controlplane.ForTest(t)), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	definitions, err := client.REST(schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	const name = "vaults.metadata.example.com"
	description := strings.Repeat("x", 200_000)
	body := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":%q},"spec":{
		"group":"metadata.example.com","scope":"Namespaced","names":{"plural":"vaults","singular":"vault","kind":"Vault","listKind":"VaultList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","description":%q}}}]}}`, name, description)
	if err := definitions.Post().Resource("customresourcedefinitions").Body([]byte(body)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, edit := range []string{"", `{"spec":{"preserveUnknownFields":false,"names":{"shortNames":["va"]}}}`, `{"metadata":{"labels":{"a":"b"}}}`} {
		if edit != "" {
			patch := definitions.Patch(types.MergePatchType).Resource("customresourcedefinitions").Name(name).Body([]byte(edit))
			if err := patch.Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		whole, small := readIdentity(t, client, false), readIdentity(t, client, true)
		if whole.identity != small.identity || whole.bytes < len(description) || small.bytes > 4<<10 {
			t.Errorf("%+v, and by metadata %+v", whole, small)
		}
		seen[small.identity] = true
	}
	if len(seen) != 2 { // a label is no edit of the definition
		t.Errorf("the identities are %v", seen)
	}
}

type definitionAnswer struct {
	identity string
	bytes    int
}

func readIdentity(t *testing.T, client *Client, metadataOnly bool) definitionAnswer {
	t.Helper()
	text, err := client.Definition(t.Context(), event.Resource{Group: "metadata.example.com", Version: "v1", Resource: "vaults"}, metadataOnly)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Metadata struct {
			UID        string
			Generation int64
		}
	}
	if err := json.Unmarshal(text, &d); err != nil || d.Metadata.UID == "" {
		t.Fatalf("%s (%v)", text, err)
	}
	return definitionAnswer{fmt.Sprintf("%s/%d", d.Metadata.UID, d.Metadata.Generation), len(text)}
}
