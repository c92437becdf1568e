package shape

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestAddedAnnotationsAreInEachObject once, in the place of those that the object has, and nothing else changes.
func TestAddedAnnotationsAreInEachObject(t *testing.T) {
	a, err := newAnnotator([]Annotation{{"example.com/env", `pr"od`}, {"region", "eu"}})
	if err != nil {
		t.Fatal(err)
	}
	const added = `"example.com/env":"pr\"od","region":"eu"`
	for body, want := range map[string]string{
		`{"metadata":{"name":"a"},"n":1.0}`:                                          `{"metadata":{"annotations":{` + added + `},"name":"a"},"n":1.0}`,
		`{"metadata":{}}`:                                                            `{"metadata":{"annotations":{` + added + `}}}`,
		`{"metadata":{"annotations":null,"name":"a"}}`:                               `{"metadata":{"annotations":{` + added + `},"name":"a"}}`,
		`{"metadata":{"annotations": { } }}`:                                         `{"metadata":{"annotations": {` + added + ` } }}`,
		`{"metadata":{"annotations":{"region":"forged"}}}`:                           `{"metadata":{"annotations":{` + added + `}}}`,
		`{"metadata":{"annotations":{"b":"1","re\u0067ion":"forged","z":"2"}}}`:      `{"metadata":{"annotations":{` + added + `,"b":"1","z":"2"}}}`,
		`{"spec":{"metadata":{"annotations":{"region":"kept"}}},"metadata":{"x":1}}`: `{"spec":{"metadata":{"annotations":{"region":"kept"}}},"metadata":{"annotations":{` + added + `},"x":1}}`,
		`{"kind":"Odd"}`: `{"kind":"Odd"}`,
	} {
		got := []byte(body)
		for range 2 { // a stored state has them already
			if err := a.annotate(&got, new([]byte)); err != nil || string(got) != want {
				t.Errorf("%s\nis   %s (%v)\nwant %s", body, got, err, want)
			}
		}
		if !json.Valid(got) {
			t.Errorf("no JSON: %s", got)
		}
	}
	for _, broken := range []string{`{"metadata":{"name":`, `[`, ``} {
		got := []byte(broken)
		if err := a.annotate(&got); (err == nil) != (broken == "") {
			t.Errorf("%q: %v", broken, err)
		}
	}
}

// TestAddedAnnotationsAreShapedAsTheObjectsOwn: redacted, left out, filtered, and in both states; an edit claims no change.
func TestAddedAnnotationsAreShapedAsTheObjectsOwn(t *testing.T) {
	env := func(value string) []Annotation { return []Annotation{{"example.com/env", value}} }
	policy := Policy{Before: "full", Changed: "values", AddAnnotations: env("prod"), Filter: `object == null || object.metadata.annotations["example.com/env"] == "prod"`}
	s := newScene(t, policy)
	s.shapeChanges(addedWith(newObject("1", "1")))
	got := s.shapeChanges(updatedTo(deployment, newObject("1", "22")))
	if envOf(t, got[0].Before) != "prod" || envOf(t, got[0].After) != "prod" || strings.Contains(string(got[0].Changed), "annotations") {
		t.Fatalf("%d changes, the first %+v", len(got), got[0])
	}

	policy.AddAnnotations, policy.Filter = env("staging"), ""
	s.restartWith(policy, oneKey)
	got = s.shapeChanges(updatedTo(deployment, newObject("1", "333")))
	if envOf(t, got[0].After) != "staging" || len(got[0].Changed) > 0 || got[0].Before != nil {
		t.Errorf("an edit: changed %s, before %s", got[0].Changed, got[0].Before)
	}
	gone := &event.Change{Type: event.Deleted, Resource: deployment, Namespace: "n", Name: "a", UID: "u", FinalStateUnknown: true}
	if got = s.shapeChanges(gone); envOf(t, got[0].Before) != "staging" {
		t.Errorf("the last state: %s", got[0].Before)
	}

	for name, p := range map[string]Policy{
		"***": {RedactPaths: []string{`metadata.annotations["example.com/env"]`}},
		"":    {Fields: Fields{Drop: []string{"metadata.annotations"}}},
	} {
		p.AddAnnotations = env("prod")
		if got := newScene(t, p).shapeChanges(addedWith(newObject("1", "1"))); envOf(t, got[0].After) != name {
			t.Errorf("%s: %s", name, got[0].After)
		}
	}
	secret := addedWith(newObject("1", "1"))
	secret.Resource = event.Resource{Version: "v1", Resource: "secrets", Kind: "Secret"}
	if got := newScene(t, Policy{AddAnnotations: env("prod")}).shapeChanges(secret); envOf(t, got[0].After) != "***" {
		t.Errorf("a Secret shows %s", got[0].After)
	}
}

func envOf(t *testing.T, object []byte) string {
	t.Helper()
	var o struct {
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal(object, &o); err != nil {
		t.Fatalf("%v in %s", err, object)
	}
	return o.Metadata.Annotations["example.com/env"]
}

func TestAddedAnnotationsNeedNamesOfTheirOwn(t *testing.T) {
	err := Policy{AddAnnotations: []Annotation{{"env", "1"}, {"a b", ""}, {"env", "2"}, {"kubectl.kubernetes.io/last-applied-configuration", "{}"}}}.Validate("at", false)
	want := []string{
		`at.addAnnotations[1].name: "a b" is not an annotation name; write the complete name, as in example.com/owner`,
		`at.addAnnotations[2].name: "env" is added already`,
		`at.addAnnotations[3].name: "kubectl.kubernetes.io/last-applied-configuration" is redacted as a copy of the object`,
	}
	if err == nil || !reflect.DeepEqual(strings.Split(err.Error(), "\n"), want) {
		t.Errorf("%v", err)
	}
}
