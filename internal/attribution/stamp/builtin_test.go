package stamp

import (
	_ "embed"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// The objects that the tests write: one of each built-in type, by the name of the resource.
//
//go:embed testdata/objects.json
var objectsText []byte

// sample is an object of a built-in type.
type sample struct {
	Version string         `json:"version"`
	Object  map[string]any `json:"object"`
}

// builtIn is a built-in type that can be written.
type builtIn struct {
	resource   event.Resource // without a version
	versions   []string
	namespaced bool
	subs       map[string]bool // the subresources status and scale of any version
}

// path returns where the type is served in a version.
func (b *builtIn) path(version string) string {
	root := "/apis/" + b.resource.Group + "/" + version
	if b.resource.Group == "" {
		root = "/api/" + version
	}
	if b.namespaced {
		root += "/namespaces/default"
	}
	return root + "/" + b.resource.Resource
}

// builtIns returns what the API server serves in a group that the program knows, by discovery.
func (c *cluster) builtIns() (all []*builtIn) {
	c.t.Helper()
	byName := map[string]*builtIn{}
	for _, root := range []string{"/api", "/apis"} {
		var found struct {
			Items []struct {
				Metadata struct{ Name string }
				Versions []struct {
					Version   string
					Resources []struct {
						Resource, Scope string
						Verbs           []string
						ResponseKind    struct{ Kind string }
						Subresources    []struct{ Subresource string }
					}
				}
			}
		}
		text := c.mustSend("alice", "GET", root, "", "accept:application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList").text
		if err := json.Unmarshal(text, &found); err != nil {
			c.t.Fatal(err)
		}
		for _, g := range found.Items {
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					if !slices.Contains(r.Verbs, "create") || !slices.Contains(r.Verbs, "update") {
						continue
					}
					resource := event.Resource{Group: g.Metadata.Name, Resource: r.Resource}
					b := byName[resource.String()]
					if b == nil {
						b = &builtIn{resource: resource, namespaced: r.Scope == "Namespaced", subs: map[string]bool{}}
						byName[resource.String()] = b
					}
					b.versions = append(b.versions, v.Version)
					for _, s := range r.Subresources {
						b.subs[s.Subresource] = s.Subresource == "status" || s.Subresource == "scale"
					}
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all
}

// outcome is what an API server made of a write: its code, and the object that it stored, without what differs each time and
// without the stamp.
type outcome struct {
	code   int
	stored string
}

// noNewVersion ends what is stored after a put that stored nothing.
const noNewVersion = " (no new version)"

// writes are the outcomes of a series of writes.
type writes struct {
	c        *cluster
	outcomes map[string]outcome
	stamped  map[string]bool // resources of which a create was stamped
}

func (w *writes) send(step, method, path string, body any, contentType ...string) object {
	w.c.t.Helper()
	text, isText := body.(string)
	if !isText {
		encoded, err := json.Marshal(body)
		if err != nil {
			w.c.t.Fatal(err)
		}
		text = string(encoded)
	}
	code, o := w.c.send("alice", method, path, text, contentType...)
	stored := withoutVolatile(w.c.t, o.text)
	if code >= 300 {
		stored = generatedName.ReplaceAllString(o.Message, "made-*")
	}
	w.outcomes[step] = outcome{code, stored}
	return o
}

// put reads an object and writes it back, edited, until no controller wrote it meanwhile. It reports whether that made a
// version.
func (w *writes) put(step, path string, edit func(o map[string]any)) {
	w.c.t.Helper()
	for {
		read := w.c.mustSend("alice", "GET", path, "")
		o := copyOf(w.c.t, read.text)
		edit(o)
		put := w.send(step, "PUT", path, o)
		if is := w.outcomes[step]; is.code != http.StatusConflict {
			if put.Metadata.ResourceVersion == read.Metadata.ResourceVersion {
				is.stored += noNewVersion
			}
			w.outcomes[step] = is
			return
		}
	}
}

// What differs each time.
var (
	generatedName = regexp.MustCompile(`made-[a-z0-9]{5}`)
	anyTime       = regexp.MustCompile(`"20\d\d-\d\d-\d\dT[^"]*Z"`)
)

// withoutVolatile returns an object without the stamp, and without what the API server chooses anew for each object.
func withoutVolatile(t testing.TB, text []byte) string {
	var o map[string]any
	if err := json.Unmarshal(text, &o); err != nil {
		return string(text)
	}
	if m, ok := o["metadata"].(map[string]any); ok {
		for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"} {
			delete(m, name)
		}
		if m["generateName"] != nil {
			delete(m, "name")
		}
		if annotations, ok := m["annotations"].(map[string]any); ok {
			if delete(annotations, event.StampAnnotation); len(annotations) == 0 {
				delete(m, "annotations")
			}
		}
	}
	switch o["kind"] {
	case "APIService", "CustomResourceDefinition", "FlowSchema":
		delete(o, "status") // by a controller
	}
	if s, ok := o["spec"].(map[string]any); ok {
		for _, name := range []string{"clusterIP", "clusterIPs", "healthCheckNodePort"} {
			delete(s, name)
		}
		if ports, ok := s["ports"].([]any); ok {
			for _, p := range ports {
				delete(p.(map[string]any), "nodePort")
			}
		}
	}
	stable, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return anyTime.ReplaceAllString(generatedName.ReplaceAllString(string(stable), "made-*"), "TIME")
}

// copyOf returns a deep copy of an object as decoded JSON.
func copyOf(t testing.TB, text []byte) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return o
}

// writeType writes an object of a type through each version, in each way.
func (w *writes) writeType(b *builtIn, variant string, first sample) {
	t := w.c.t
	t.Helper()
	name := b.resource.String()
	meta := first.Object["metadata"].(map[string]any)
	item := "/" + meta["name"].(string)
	step := func(version, what string) string { return name + variant + " " + version + " " + what }
	made := w.send(step(first.Version, "first create"), "POST", b.path(first.Version), first.Object)
	if w.outcomes[step(first.Version, "first create")].code >= 300 {
		t.Fatalf("%s: the sample is not accepted: %s", name, made.text)
	}
	w.stamped[name] = made.stamp() != ""
	for _, version := range b.versions {
		in := func(what string) string { return step(version, what) }
		at := b.path(version)
		read := w.send(in("read"), "GET", at+item, "")
		if w.outcomes[in("read")].code >= 300 {
			continue
		}
		w.put(in("put of the same"), at+item, func(map[string]any) {})
		w.put(in("put"), at+item, func(o map[string]any) { o["metadata"].(map[string]any)["labels"] = map[string]any{"put": version} })
		w.send(in("merge patch"), "PATCH", at+item, `{"metadata":{"labels":{"merge":"`+version+`"}}}`)
		w.send(in("strategic patch"), "PATCH", at+item, `{"metadata":{"annotations":{"example.io/strategic":"`+version+`"}}}`, strategicPatch)
		w.send(in("JSON patch"), "PATCH", at+item, `[{"op":"add","path":"/metadata/labels/json","value":"`+version+`"}]`, "application/json-patch+json")
		head := copyOf(t, read.text)
		w.send(in("apply"), "PATCH", at+item+"?fieldManager=f&force=true", map[string]any{"apiVersion": head["apiVersion"], "kind": head["kind"],
			"metadata": map[string]any{"name": meta["name"], "labels": map[string]any{"apply": version}}}, applyPatch)
		// In a fixed order, scale first: a patch of it leaves a split entry in the managed fields, and the next write, whatever it
		// writes, joins that again. Were this the put of the same through the next version, that would make a version.
		for _, sub := range slices.Sorted(maps.Keys(b.subs)) {
			if b.subs[sub] {
				w.send(in("patch of "+sub), "PATCH", at+item+"/"+sub, `{"metadata":{"annotations":{"example.io/sub":"`+version+`"}}}`)
			}
		}
		again := copyOf(t, w.send(in("read again"), "GET", at+item, "").text)
		w.send(in("create as a dry run"), "POST", at+"?dryRun=All", generated(again))
		other := w.send(in("create with generateName"), "POST", at, generated(again))
		if other.Metadata.Name != "" {
			w.c.send("alice", "DELETE", at+"/"+other.Metadata.Name+"?gracePeriodSeconds=0", "")
		}
		for _, reader := range b.versions {
			w.send(in("read of all in "+reader), "GET", b.path(reader)+item, "")
		}
	}
	w.c.send("alice", "DELETE", b.path(first.Version)+item+"?gracePeriodSeconds=0", "")
	w.c.awaitGone(b.path(first.Version) + item)
}

// generated returns a new object with the contents of one that was read, and a generated name.
func generated(o map[string]any) map[string]any {
	meta := o["metadata"].(map[string]any)
	for _, name := range []string{"name", "uid", "resourceVersion", "creationTimestamp", "managedFields", "finalizers", "deletionTimestamp"} {
		delete(meta, name)
	}
	meta["generateName"] = "made-"
	if s, ok := o["spec"].(map[string]any); ok {
		delete(s, "clusterIP")
		delete(s, "clusterIPs")
		if s["type"] == "LoadBalancer" {
			delete(s, "ports")
			s["ports"] = []any{map[string]any{"port": 10000}}
		}
	}
	return o
}

// awaitGone waits until an object is deleted, and removes its finalizers.
func (c *cluster) awaitGone(path string) {
	c.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		code, o := c.send("alice", "GET", path, "")
		if code == http.StatusNotFound {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s is not deleted: %s", path, o.text)
		}
		c.send("alice", "PATCH", path, `{"metadata":{"finalizers":null}}`)
		if strings.HasPrefix(path, "/api/v1/namespaces/") && strings.Count(path, "/") == 4 {
			c.send("alice", "PUT", path+"/finalize", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+o.Metadata.Name+`"},"spec":{"finalizers":[]}}`)
		}
	}
}

// writeAll writes objects of all types.
func (c *cluster) writeAll(types []*builtIn) *writes {
	c.t.Helper()
	var samples map[string]sample
	if err := json.Unmarshal(objectsText, &samples); err != nil {
		c.t.Fatal(err)
	}
	w := &writes{c, map[string]outcome{}, map[string]bool{}}
	for _, b := range types {
		first, known := samples[b.resource.String()]
		if !known {
			c.t.Errorf("testdata/objects.json has no object of %s, so that what the policy does to it is not known", b.resource.String())
			continue
		}
		if !slices.Contains(b.versions, first.Version) {
			first.Version = b.versions[0]
		}
		w.writeType(b, "", first)
	}
	return w
}

// verifySame reports each write that did not end as it did before.
func (w *writes) verifySame(before *writes) {
	w.c.t.Helper()
	for _, step := range slices.Sorted(maps.Keys(before.outcomes)) {
		if is, was := w.outcomes[step], before.outcomes[step]; is != was {
			w.c.t.Errorf("%s\n under the policy: %d %s\n without:          %d %s", step, is.code, is.stored, was.code, was.stored)
		}
	}
}

// metricsOf are HorizontalPodAutoscalers that autoscaling/v1 has no members for.
var metricsOf = map[string]string{
	"memory": `{"type":"Resource","resource":{"name":"memory","target":{"type":"Utilization","averageUtilization":70}}}`,
	"both": `{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":70}}},
{"type":"Resource","resource":{"name":"memory","target":{"type":"AverageValue","averageValue":"1Gi"}}}`,
	"external": `{"type":"External","external":{"metric":{"name":"q"},"target":{"type":"Value","value":"5"}}},
{"type":"Pods","pods":{"metric":{"name":"r"},"target":{"type":"AverageValue","averageValue":"1"}}}`,
}

func (w *writes) writeAutoscalers(types []*builtIn) {
	w.c.t.Helper()
	for _, b := range types {
		for variant, metrics := range metricsOf {
			if b.resource.Group == "autoscaling" {
				w.writeType(b, " of "+variant, sample{"v2", copyOf(w.c.t, []byte(`{"metadata":{"name":"sample"},"spec":{"maxReplicas":3,
"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"metrics":[`+metrics+`]}}`))})
			}
		}
	}
}

// TestThePolicyChangesNoWriteOfAnyBuiltInType: under the policy, each write of each built-in type through each version that
// an API server can serve is answered as it is without the policy, and stores the same but for the stamp.
func TestThePolicyChangesNoWriteOfAnyBuiltInType(t *testing.T) {
	require.Long(t)
	const everything, features = "--runtime-config=api/all=true", "--feature-gates=AllBeta=true,AllAlpha=true"
	served := map[string]bool{}
	for name, args := range map[string][]string{"newest": {everything, features}, "1.36": {everything, features, "--emulated-version=1.36"}} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, args...)
			types := c.builtIns()
			before := c.writeAll(types)
			before.writeAutoscalers(types)
			c.applyPolicy(namesOf(types)...)
			under := c.writeAll(types)
			under.writeAutoscalers(types)
			under.verifySame(before)
			for _, b := range types {
				if name := b.resource.String(); under.stamped[name] != (WhyUnstamped(b.resource) == "") {
					t.Errorf("%s: a create is stamped: %v", name, under.stamped[name])
				}
				for _, version := range b.versions {
					served[b.resource.Group+"/"+version] = true
				}
			}
		})
	}
	for group, versions := range builtInVersions {
		for _, version := range versions {
			if !served[group+"/"+version] {
				t.Errorf("%s/%s: no type of it was written", group, version)
			}
		}
	}
	for name := range served {
		if group, version, _ := strings.Cut(name, "/"); !slices.Contains(builtInVersions[group], version) {
			t.Errorf("%s/%s is served, and the policy does not know it", group, version)
		}
	}
}

func namesOf(types []*builtIn) (names []string) {
	for _, b := range types {
		names = append(names, b.resource.String())
	}
	return names
}

// TestThePolicyChangesNoWriteOfACustomResource: also not where a definition serves two versions that differ, whether the API
// server converts them or a webhook that loses members.
func TestThePolicyChangesNoWriteOfACustomResource(t *testing.T) {
	c := startCluster(t)
	webhook := httptest.NewTLSServer(http.HandlerFunc(convertLossily))
	defer webhook.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})
	types := []*builtIn{
		c.defineTwoVersions("gadgets", map[string]any{"strategy": "None"}),
		c.defineTwoVersions("gizmos", map[string]any{"strategy": "Webhook", "webhook": map[string]any{
			"conversionReviewVersions": []string{"v1"}, "clientConfig": map[string]any{"url": webhook.URL, "caBundle": authority},
		}}),
	}
	writeAll := func() *writes {
		w := &writes{c, map[string]outcome{}, map[string]bool{}}
		for _, b := range types {
			w.writeType(b, "", sample{"v1", map[string]any{"apiVersion": "example.io/v1", "kind": kindOf(b), "metadata": map[string]any{"name": "x"},
				"spec": map[string]any{"replicas": 1, "old": "1", "both": "2"}}})
		}
		return w
	}
	before := writeAll()
	c.applyPolicy(append(namesOf(types), "configmaps")...)
	for _, b := range types {
		for _, version := range b.versions {
			c.awaitPatchable(b, version)
		}
	}
	under := writeAll()
	under.verifySame(before)
	for step, is := range under.outcomes {
		if strings.HasSuffix(step, " put of the same") && !strings.HasSuffix(is.stored, noNewVersion) {
			t.Errorf("%s makes a version: %d %s", step, is.code, is.stored)
		}
	}
	for _, b := range types {
		if !under.stamped[b.resource.String()] {
			t.Errorf("%s is not stamped", b.resource)
		}
	}
}

// awaitPatchable waits until the API server has read the schema of a custom resource: for some seconds it refuses each write
// that a mutating policy matches.
func (c *cluster) awaitPatchable(b *builtIn, version string) {
	c.t.Helper()
	probe := `{"apiVersion":"example.io/` + version + `","kind":"` + kindOf(b) + `","metadata":{"name":"probe"}}`
	c.awaitAnswer("POST", b.path(version)+"?dryRun=All", probe, func(code int, o object) bool {
		if code != http.StatusCreated && code != http.StatusServiceUnavailable {
			c.t.Fatalf("%s: %s", b.resource, o.text)
		}
		return code == http.StatusCreated
	})
}

func kindOf(b *builtIn) string {
	return strings.ToUpper(b.resource.Resource[:1]) + b.resource.Resource[1:]
}

// defineTwoVersions defines a type that is stored as v2, and waits until it is served.
func (c *cluster) defineTwoVersions(resource string, conversion map[string]any) *builtIn {
	c.t.Helper()
	b := &builtIn{event.Resource{Group: "example.io", Resource: resource}, []string{"v1", "v2"}, true, map[string]bool{"status": true, "scale": true}}
	version := func(name, member string) map[string]any {
		text := map[string]any{"type": "string"}
		return map[string]any{"name": name, "served": true, "storage": name == "v2",
			"subresources": map[string]any{"status": map[string]any{}, "scale": map[string]any{
				"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
				"spec": map[string]any{"type": "object", "properties": map[string]any{
					"replicas": map[string]any{"type": "integer"}, member: text, "both": text}},
				"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": resource + ".example.io"}, "spec": map[string]any{
		"group": "example.io", "scope": "Namespaced", "names": map[string]any{"plural": resource, "kind": kindOf(b)}, "conversion": conversion,
		"versions": []any{version("v1", "old"), version("v2", "new")}}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.mustSend("alice", "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(body))
	c.awaitAnswer("GET", b.path("v1"), "", func(code int, _ object) bool { return code == http.StatusOK })
	return b
}

// convertLossily converts to another version and drops what only one of them has.
func convertLossily(w http.ResponseWriter, r *http.Request) {
	var review struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Response   map[string]any `json:"response"`
		Request    *struct {
			UID     string           `json:"uid"`
			Desired string           `json:"desiredAPIVersion"`
			Objects []map[string]any `json:"objects"`
		} `json:"request,omitempty"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, o := range review.Request.Objects {
		o["apiVersion"] = review.Request.Desired
		if spec, ok := o["spec"].(map[string]any); ok {
			delete(spec, "old")
			delete(spec, "new")
		}
	}
	review.Response = map[string]any{"uid": review.Request.UID, "result": map[string]any{"status": "Success"}, "convertedObjects": review.Request.Objects}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}
