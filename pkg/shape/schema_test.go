package shape

import (
	"fmt"
	"strings"
	"testing"
)

// schemaDocument has what the OpenAPI v3 documents of API servers have: references, defaults beside them, maps, lists and
// types that are open.
const schemaDocument = `{"components":{"schemas":{
 "Pod":{"type":"object","x-kubernetes-group-version-kind":[{"group":"","version":"v1","kind":"Pod"}],"properties":{
  "metadata":{"default":{},"allOf":[{"$ref":"#/components/schemas/Meta"}]},
  "spec":{"$ref":"#/components/schemas/Spec"}}},
 "Meta":{"type":"object","properties":{"name":{"type":"string"},"annotations":{"type":"object","additionalProperties":{"type":"string","default":""}}}},
 "Spec":{"type":"object","properties":{
  "containers":{"type":"array","items":{"allOf":[{"$ref":"#/components/schemas/Container"}]}},
  "open":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
  "raw":{"type":"object"},
  "recursive":{"$ref":"#/components/schemas/Spec"},
  "closed":{"type":"object","additionalProperties":false,"properties":{"token":{"type":"string"}}}}},
 "Container":{"type":"object","properties":{"name":{"type":"string"},"env":{"type":"array","items":{"type":"object","properties":{
  "name":{"type":"string"},"value":{"type":"string"}}}}}}}}}`

func TestPathsAreMatchedWithSchemas(t *testing.T) {
	document, err := ParseSchemas([]byte(schemaDocument))
	if err != nil {
		t.Fatal(err)
	}
	s, found := document.Find("", "v1", "Pod")
	if !found {
		t.Fatal("the document has no Pod")
	}
	for text, want := range map[string]struct {
		match   PathMatch
		nearest string
	}{
		"spec.containers[*].env[*].value":           {PathKnown, ""},
		"spec.containers.env.value":                 {PathKnown, ""},
		"spec.recursive.recursive.containers":       {PathKnown, ""},
		"metadata.annotations.token":                {PathKnown, ""},
		"spec[*].token":                             {PathKnown, ""},
		"spec.closed[*]":                            {PathKnown, ""},
		"spec.open.anything[*].below":               {PathPossible, ""},
		"spec.raw.token":                            {PathPossible, ""},
		"spec.container[*].env[*].value":            {PathAbsent, "spec.containers[*].env[*].value"},
		"spec.containers[*].env[*].valeu":           {PathAbsent, "spec.containers[*].env[*].value"},
		"spec.container[*].env[*].valeu":            {PathAbsent, "spec.containers[*].env[*].value"},
		"spec.closed.tokne":                         {PathAbsent, "spec.closed.token"},
		"spec.containers[*].name.first":             {PathAbsent, ""},
		"spec.whatever":                             {PathAbsent, ""},
		"status.conditions":                         {PathAbsent, ""},
		`spec.containers[*].env[*]["value "]`:       {PathAbsent, "spec.containers[*].env[*].value"},
		"spec.recursive.recursive.container[*].env": {PathAbsent, "spec.recursive.recursive.containers[*].env"},
	} {
		counter, err := Policy{RedactPaths: []string{text}}.NewPathCounter()
		if err != nil {
			t.Fatal(err)
		}
		counter.AddSchema(s)
		if p := counter.Paths[0]; p.Match != want.match || p.Nearest != want.nearest {
			t.Errorf("%s: got %d %q, want %d %q", text, p.Match, p.Nearest, want.match, want.nearest)
		}
	}
	if _, found := document.Find("", "v1", "Node"); found {
		t.Error("a kind that the document lacks was found")
	}
	if _, err := ParseSchemas([]byte("<html>")); err == nil {
		t.Error("a document that is none was read")
	}
}

// TestAPathOfOneTypeIsEnough holds rules with several types: a path protects where one of them has it, and an object counts
// where there is no schema.
func TestAPathOfOneTypeIsEnough(t *testing.T) {
	document, err := ParseSchemas([]byte(schemaDocument))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := document.Find("", "v1", "Pod")
	counter, err := Policy{RedactPaths: []string{"spec.container"}}.NewPathCounter()
	if err != nil {
		t.Fatal(err)
	}
	if counter.AllMatch() {
		t.Error("a path matches before anything was seen")
	}
	counter.AddSchema(s)
	if counter.AllMatch() || counter.Paths[0].Nearest != "spec.containers" {
		t.Errorf("got %+v", counter.Paths[0])
	}
	counter.AddObject([]byte(`{"spec":{"container":"x"}}`))
	if !counter.AllMatch() || counter.Paths[0].Nearest != "" {
		t.Errorf("got %+v", counter.Paths[0])
	}
}

// TestPathsAreMatchedWithDefinitions matches paths with the versions of a definition, which lacks what all objects have.
func TestPathsAreMatchedWithDefinitions(t *testing.T) {
	const definition = `{"metadata":{"uid":"u","generation":7},"spec":{%s"versions":[
		{"name":"v1","schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"token":{"type":"string"}}}}}}},
		{"name":"v2","schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}, {"name":"v3"}]}}`
	matches := func(text, version, of string) PathMatch {
		s, identity, err := ParseDefinition([]byte(text), version)
		if err != nil || identity != "u/7" {
			t.Fatal(identity, err)
		}
		counter, err := Policy{RedactPaths: []string{of}}.NewPathCounter()
		if err != nil {
			t.Fatal(err)
		}
		counter.AddSchema(s)
		return counter.Paths[0].Match
	}
	closed, open := fmt.Sprintf(definition, ""), fmt.Sprintf(definition, `"preserveUnknownFields":true,`)
	for of, want := range map[string][4]PathMatch{ // v1, v2, v3, v1 of open
		"spec.token":                  {PathKnown, PathPossible, PathPossible, PathPossible},
		"spec.other":                  {PathAbsent, PathPossible, PathPossible, PathPossible},
		"status":                      {PathAbsent, PathPossible, PathPossible, PathPossible},
		`metadata.annotations["a/b"]`: {PathPossible, PathPossible, PathPossible, PathPossible},
	} {
		got := [4]PathMatch{matches(closed, "v1", of), matches(closed, "v2", of), matches(closed, "v3", of), matches(open, "v1", of)}
		if got != want {
			t.Errorf("%s: got %v, want %v", of, got, want)
		}
	}
	for _, wrong := range []string{"<html>", `{"kind":"Status"}`, strings.ReplaceAll(closed, `"v1"`, `"v9"`)} {
		if _, _, err := ParseDefinition([]byte(wrong), "v1"); err == nil {
			t.Errorf("%s: read", wrong)
		}
	}
}

// TestCountersOfTypesAddUp adds the counts of two types: the best match counts.
func TestCountersOfTypesAddUp(t *testing.T) {
	counter := func(object string) *PathCounter {
		c, err := Policy{RedactPaths: []string{"spec.token", "spec.name"}}.NewPathCounter()
		if err != nil {
			t.Fatal(err)
		}
		if object != "" {
			c.AddObject([]byte(object))
		}
		return c
	}
	all := counter("")
	all.Add(counter(`{"spec":{"token":"x"}}`))
	if all.AllMatch() || all.Paths[0].Match != PathKnown || all.Paths[1].Match != PathAbsent {
		t.Errorf("got %+v", all.Paths)
	}
	all.Add(counter(`{"spec":{"name":"x"}}`))
	if !all.AllMatch() || all.Objects != 2 {
		t.Errorf("got %+v", all)
	}
}
