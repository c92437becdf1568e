package shape

import (
	"slices"
	"strings"
	"testing"
)

// podDocument has the types of Pods that hold environment variables, as an API server has them, and of Deployments.
const podDocument = `{"components":{"schemas":{
 "Pod":{"type":"object","x-kubernetes-group-version-kind":[{"group":"","version":"v1","kind":"Pod"}],"properties":{
  "metadata":{"type":"object"},"spec":{"allOf":[{"$ref":"#/components/schemas/PodSpec"}]}}},
 "Deployment":{"type":"object","x-kubernetes-group-version-kind":[{"group":"apps","version":"v1","kind":"Deployment"}],"properties":{
  "metadata":{"type":"object"},"spec":{"type":"object","properties":{"replicas":{"type":"integer"},"template":{"type":"object","properties":{
   "metadata":{"type":"object","properties":{"annotations":{"type":"object","additionalProperties":{"type":"string"}}}},
   "spec":{"allOf":[{"$ref":"#/components/schemas/PodSpec"}]}}}}}}},
 "PodSpec":{"type":"object","properties":{
  "containers":{"type":"array","items":{"allOf":[{"$ref":"#/components/schemas/Container"}]}},
  "initContainers":{"type":"array","items":{"$ref":"#/components/schemas/Container"}},
  "ephemeralContainers":{"type":"array","items":{"$ref":"#/components/schemas/EphemeralContainer"}},
  "headers":{"type":"array","items":{"$ref":"#/components/schemas/Header"}}}},
 "Header":{"type":"object","properties":{"name":{"type":"string"},"value":{"type":"string"}}},
 "Container":{"type":"object","properties":{"name":{},"image":{},"args":{},"command":{},"ports":{},"env":{"type":"array","items":{"$ref":"#/components/schemas/EnvVar"}}}},
 "EphemeralContainer":{"type":"object","properties":{"name":{},"image":{},"args":{},"command":{},"ports":{},"targetContainerName":{},
  "env":{"type":"array","items":{"$ref":"#/components/schemas/EnvVar"}}}},
 "EnvVar":{"type":"object","properties":{"name":{"type":"string"},"value":{"type":"string"},"valueFrom":{"type":"object"}}}}}}`

// templateDefinition describes a Pod template in place, as definitions of custom resources do.
const templateDefinition = `{"metadata":{"uid":"u","generation":1},"spec":{"versions":[{"name":"v1","schema":{"openAPIV3Schema":{"type":"object","properties":{
 "spec":{"type":"object","properties":{
  "template":{"type":"object","properties":{
   "containers":{"type":"array","items":{"type":"object","properties":{"name":{},"image":{},"args":{},"command":{},"ports":{},
    "env":{"type":"array","items":{"type":"object","properties":{"name":{},"value":{},"valueFrom":{}}}}}}},
   "initContainers":{"type":"array","items":{"type":"object","properties":{"name":{},"image":{},"args":{},"command":{},"ports":{},
    "env":{"type":"array","items":{"type":"object","properties":{"name":{},"value":{},"valueFrom":{}}}}}}}}},
  "users":{"type":"object","additionalProperties":{"type":"object","properties":{"login":{},"password":{}}}},
  "admin":{"type":"object","properties":{"login":{},"password":{}}},
  "other":{"type":"object","properties":{"password":{},"size":{}}}}}}}}}]}}`

// TestPlacesOfTheSameTypeAreNamed: in the type that a path matches in, and in the other types of its rule.
func TestPlacesOfTheSameTypeAreNamed(t *testing.T) {
	document, err := ParseSchemas([]byte(podDocument))
	if err != nil {
		t.Fatal(err)
	}
	pod, _ := document.Find("", "v1", "Pod")
	deployment, _ := document.Find("apps", "v1", "Deployment")
	custom, _, err := ParseDefinition([]byte(templateDefinition), "v1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		paths, schemas, want string
	}{
		{"spec.containers[*].env[*].value", "pod", "spec.ephemeralContainers[*].env[*].value spec.initContainers[*].env[*].value"},
		{"spec.containers.env.value", "pod", "spec.ephemeralContainers[*].env[*].value spec.initContainers[*].env[*].value"},
		{"spec.containers[*].env[*].value spec.initContainers.env spec.ephemeralContainers[*].env[*].value", "pod", ""},
		{"spec[*][*].env[*].value", "pod", ""},
		{"spec.containers[*].env", "pod", "spec.ephemeralContainers[*].env spec.initContainers[*].env"},
		{"spec.containers[*].args[*]", "pod", "spec.ephemeralContainers[*].args[*] spec.initContainers[*].args[*]"},
		{"spec.containers", "pod", "spec.ephemeralContainers[*] spec.initContainers[*]"},
		{"spec.headers[*].value", "pod", ""},
		{"spec.containers[*].env[*].value spec.initContainers[*].env[*].value spec.ephemeralContainers[*].env[*].value", "pod deployment",
			"spec.template.spec.containers[*].env[*].value spec.template.spec.ephemeralContainers[*].env[*].value spec.template.spec.initContainers[*].env[*].value"},
		{"spec.template.spec.containers[*].env[*].value", "deployment",
			"spec.template.spec.ephemeralContainers[*].env[*].value spec.template.spec.initContainers[*].env[*].value"},
		{"metadata.annotations.x spec.missing", "pod deployment", ""},
		{"spec.template.containers[*].env[*].value", "custom", "spec.template.initContainers[*].env[*].value"},
		{"spec.admin.password", "custom", "spec.users[*].password"},
		{"spec.users[*].password", "custom", "spec.admin.password"},
		{"spec.containers[*].env[*].value", "pod custom", "spec.ephemeralContainers[*].env[*].value spec.initContainers[*].env[*].value " +
			"spec.template.containers[*].env[*].value spec.template.initContainers[*].env[*].value"},
	} {
		counter, err := Policy{RedactPaths: strings.Fields(c.paths), IgnoreChanges: []string{"spec.headers"}}.NewPathCounter()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(c.schemas) {
			of, _ := Policy{RedactPaths: strings.Fields(c.paths), IgnoreChanges: []string{"spec.headers"}}.NewPathCounter()
			of.AddSchema(map[string]*Schema{"pod": pod, "deployment": deployment, "custom": custom}[name])
			counter.Add(of)
		}
		var got []string
		for _, u := range counter.Uncovered() {
			if got = append(got, u.Path); !slices.Contains(strings.Fields(c.paths), u.Like) {
				t.Errorf("%s: %s is like %q", c.paths, u.Path, u.Like)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s in %s:\n got %s\nwant %s", c.paths, c.schemas, strings.Join(got, " "), c.want)
		}
	}
}

// TestManyPlacesAreCounted: a rule for everything has dozens.
func TestManyPlacesAreCounted(t *testing.T) {
	text := DescribeUncovered(make([]UncoveredPlace, maxNamedPlaces+3))
	if !strings.HasSuffix(text, ", and 3 more") || DescribeUncovered(nil) != "" {
		t.Errorf("got %q", text)
	}
}
