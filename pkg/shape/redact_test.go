package shape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

var (
	secret     = event.Resource{Version: "v1", Resource: "secrets", Kind: "Secret"}
	deployment = event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
)

func redactorFor(t testing.TB, mode string, paths ...string) *redactor {
	t.Helper()
	parsed, err := parsePaths(paths)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRedactor(Policy{Redact: mode}, parsed, []byte("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func redactWith(t testing.TB, r *redactor, resource event.Resource, body string) string {
	t.Helper()
	out, _, err := r.redactBody([]byte(body), subject{resource: resource, identity: "u"})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if !json.Valid(out) {
		t.Fatalf("%s became %s, which is not JSON", body, out)
	}
	return string(out)
}

func TestSecretsShowOnlyNames(t *testing.T) {
	const body = `{"kind":"Secret", "metadata":{"name":"a","labels":{"l":"m"},"annotations":{"x":"y","kubernetes.io/service-account.name":"sa","kubectl.kubernetes.io/last-applied-configuration":"{\"data\":{\"p\":\"aHVudGVy\"}}"},"finalizers":["f"],"ownerReferences":[{"name":"o","note":"n"}],"managedFields":[1]}, "immutable":true,
 "data":{"p":"aHVudGVy","q":"","bin":"AAEC/w=="},"stringData":{"p":"hunter"},"type":"Opaque","unheardOf":{"x":[1,true,null,"hunter"]}}`
	for mode, want := range map[string]string{
		Mask: `{"kind":"Secret", "metadata":{"name":"a","labels":{"l":"***"},"annotations":{"x":"***","kubernetes.io/service-account.name":"sa","kubectl.kubernetes.io/last-applied-configuration":"***"},"finalizers":["f"],"ownerReferences":[{"name":"o","note":"***"}],"managedFields":["***"]}, "immutable":true,
 "data":{"p":"***","q":"***","bin":"***"},"stringData":{"p":"***"},"type":"Opaque","unheardOf":{"x":["***","***",null,"***"]}}`,
		Drop: `{"kind":"Secret", "metadata":{"name":"a","labels":{},"annotations":{"kubernetes.io/service-account.name":"sa"},"finalizers":["f"],"ownerReferences":[{"name":"o"}]}, "immutable":true,"type":"Opaque"}`,
	} {
		if got := redactWith(t, redactorFor(t, mode), secret, body); got != want {
			t.Errorf("%s\n got %s\nwant %s", mode, got, want)
		}
	}
	got := redactWith(t, redactorFor(t, HMAC), secret, body)
	for _, value := range []string{"hunter", "aHVudGVy", "AAEC"} {
		if strings.Contains(got, value) {
			t.Errorf("%q is left in %s", value, got)
		}
	}
}

// hashOf returns the redacted data of a Secret.
func hashOf(t *testing.T, r *redactor, uid, data string) map[string]string {
	t.Helper()
	out, _, err := r.redactBody([]byte(data), subject{resource: secret, identity: uid})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Data map[string]string }
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	return got.Data
}

func TestAHashIsBoundToItsObjectAndItsPlace(t *testing.T) {
	r := redactorFor(t, HMAC)
	first := hashOf(t, r, "u", `{"data":{"a":"x/","b":"x/","c":"y"}}`)
	again := hashOf(t, r, "u", `{"data":{"c":"z","b":"x\/","a":"x/"}}`)
	other := hashOf(t, r, "v", `{"data":{"a":"x/"}}`)
	if first["a"] != again["a"] || first["b"] != again["b"] {
		t.Errorf("a value that did not change has another hash: %v, %v", first, again)
	}
	if first["c"] == again["c"] {
		t.Errorf("a value that changed has the same hash: %v, %v", first, again)
	}
	if first["a"] == first["b"] || first["a"] == other["a"] {
		t.Errorf("equal values have equal hashes: %v, %v", first, other)
	}
}

func TestWithScopeGlobalEqualValuesHaveEqualHashes(t *testing.T) {
	newWith := func(scope, key string) *redactor {
		r, err := newRedactor(Policy{Redact: HMAC, HMAC: HashOptions{Scope: scope}}, nil, []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const key, body = "0123456789abcdef", `{"data":{"a":"x/","b":"x\/","c":"y"}}`
	got, other := hashOf(t, newWith("global", key), "u", body), hashOf(t, newWith("global", key), "v", body)
	if got["a"] != got["b"] || got["a"] != other["a"] || got["a"] == got["c"] {
		t.Errorf("hashes %v and %v", got, other)
	}
	rotated := hashOf(t, newWith("global", "another key, also 16 bytes or more"), "u", body)
	id := func(hash string) string { return strings.Split(hash, ":")[1] }
	if rotated["a"] == got["a"] || id(rotated["a"]) == id(got["a"]) || id(got["a"]) != id(got["c"]) {
		t.Errorf("the key IDs of %v and %v do not differ", got, rotated)
	}
	if bound := hashOf(t, newWith("object", key), "u", body); bound["a"] == got["a"] || id(bound["a"]) == id(got["a"]) {
		t.Errorf("scope object gives %v, scope global %v", bound, got)
	}
}

func TestStoredValuesAreNotRedactedTwice(t *testing.T) {
	const body = `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}},"data":{"a":"x","b":"***"}}`
	for _, mode := range []string{Mask, Drop, HMAC} {
		r := redactorFor(t, mode)
		once := redactWith(t, r, secret, body)
		twice, _, err := r.redactBody([]byte(once), subject{resource: secret, identity: "u", stored: true})
		if err != nil || string(twice) != once {
			t.Errorf("%s: %s became %s (%v)", mode, once, twice, err)
		}
		if mode == HMAC && redactWith(t, r, secret, once) == once {
			t.Errorf("a value that looks like a hash is shown: %s", once)
		}
	}
}

func TestConfiguredPathsAreRedactedInAnyResource(t *testing.T) {
	const copied = `"kubectl.kubernetes.io/last-applied-configuration":"{\"kind\":\"Deployment\",\"spec\":{\"env\":[{\"value\":\"s\"}]}}"`
	for name, c := range map[string]struct{ paths, body, want string }{
		"in every element":            {"spec.env[*].value", `{"spec":{"env":[{"name":"A","value":"s"},{"name":"B"},{"value":"t","name":"C"}]}}`, `{"spec":{"env":[{"name":"A","value":"***"},{"name":"B"},{"value":"***","name":"C"}]}}`},
		"[*] left out":                {"spec.env.value", `{"spec":{"env":[{"name":"A","value":"s"}]}}`, `{"spec":{"env":[{"name":"A","value":"***"}]}}`},
		"in every member":             {"spec[*].token", `{"spec":{"a":{"token":1.50},"b":{"token":null},"c":1}}`, `{"spec":{"a":{"token":"***"},"b":{"token":null},"c":1}}`},
		"a name with dots":            {`metadata.annotations["a.b/c"]`, `{"metadata":{"annotations":{"a.b/c":"s","a":{"b/c":1}}}}`, `{"metadata":{"annotations":{"a.b/c":"***","a":{"b/c":1}}}}`},
		"everything below":            {"spec", `{"spec":{"a":[1,{"b":"s"}]},"status":{"a":1}}`, `{"spec":{"a":["***",{"b":"***"}]},"status":{"a":1}}`},
		"a name in escapes":           {"spec.value", `{"spec":{"v\u0061lue":"s"}}`, `{"spec":{"v\u0061lue":"***"}}`},
		"the copy goes with it":       {"spec.env[*].value", `{"metadata":{"annotations":{` + copied + `}},"spec":{"env":[{"value":"s"}]}}`, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"***"}},"spec":{"env":[{"value":"***"}]}}`},
		"the copy still has it":       {"spec.env[*].value", `{"metadata":{"annotations":{` + copied + `}},"spec":{}}`, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"***"}},"spec":{}}`},
		"the copy has nothing":        {"spec.token", `{"metadata":{"annotations":{` + copied + `}},"spec":{}}`, `{"metadata":{"annotations":{` + copied + `}},"spec":{}}`},
		"the copy cannot be read":     {"spec.token", `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"spec: {token: s}"}}}`, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"***"}}}`},
		"not there":                   {"spec.token", `{"spec":"s","a":{"token":"x"}}`, `{"spec":"s","a":{"token":"x"}}`},
		"wildcard and name, together": {"spec[*].a spec.x.b", `{"spec":{"x":{"a":1,"b":2,"c":3},"y":{"a":1,"b":2}}}`, `{"spec":{"x":{"a":"***","b":"***","c":3},"y":{"a":"***","b":2}}}`},
	} {
		if got := redactWith(t, redactorFor(t, Mask, strings.Fields(c.paths)...), deployment, c.body); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", name, got, c.want)
		}
	}
}

func TestDroppingLeavesValidJSON(t *testing.T) {
	for body, want := range map[string]string{
		`{"spec":{"a":1,"b":2,"c":3}}`:     `{"spec":{"b":2}}`,
		`{"spec":{"a":1 , "c":3 , "b":2}}`: `{"spec":{   "b":2}}`,
		`{"spec":{"b":2,"a":1,"c":3}}`:     `{"spec":{"b":2}}`,
		`{"spec":{"a":1}}`:                 `{"spec":{}}`,
		`{"spec":{"d":[1,2]}}`:             `{"spec":{"d":[]}}`,
	} {
		if got := redactWith(t, redactorFor(t, Drop, "spec.a", "spec.c", "spec.d[*]"), deployment, body); got != want {
			t.Errorf("%s became %s, want %s", body, got, want)
		}
	}
}

func TestAnObjectWithNothingToHideIsNotCopied(t *testing.T) {
	body := []byte(`{"spec":{"replicas":1e0}}`)
	r := redactorFor(t, Mask, "spec.token")
	out, hidden, err := r.redactBody(body, subject{resource: deployment})
	if err != nil || &out[0] != &body[0] || hidden != 0 {
		t.Errorf("got %s, hidden %b, %v", out, hidden, err)
	}
}

func TestUnredactableObjectsAreWithheld(t *testing.T) {
	s, err := New([]Policy{{}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{``, `null`, `[]`, `{"data":{"p":"hunter"`, `{"data":{"p":"hunter"}} x`, `{"data":{"p":"hun"},"data":{"p":"hunter"}}`, `{"data":{"p":hunter}}`, `{"x":01}`} {
		c := &event.Change{Type: event.Updated, Resource: secret, Before: []byte(`{}`), After: []byte(body)}
		s.rules[0].shapeChange(c, nil, &objectFlags{})
		if c.Before != nil || c.After != nil || c.Withheld == "" || strings.Contains(c.Withheld, "hun") {
			t.Errorf("%q: before %q, after %q, withheld %q", body, c.Before, c.After, c.Withheld)
		}
	}
}

func TestInvalidPathsAreExplained(t *testing.T) {
	for text, want := range map[string]string{
		"":              `"" is not a path`,
		".spec":         `".spec": expected a name`,
		"spec..a":       `position 5`,
		"spec.":         `position 5`,
		"spec[1]":       `expected [*] for every element or member, or ["name"] at position 5`,
		`spec["a`:       `expected a name and then "]`,
		"spec*":         `expected "." or "["`,
		"spec[*]x":      `expected "." or "[" at position 8`,
		`spec.a"b`:      `expected "." or "["`,
		"a.b c":         `expected "." or "["`,
		`spec['']`:      `expected a name`,
		"$.spec['a'] ":  `position 12`,
		"spec[*].a.b.*": `expected a name`,
	} {
		if _, err := path.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"/data":                        `a name with "/" is written ["/data"]`,
		"/spec/containers/0/env":       `a name with "/"`,
		"$.spec.x":                     `remove "$."`,
		"$":                            `remove "$."`,
		"object.spec.x":                `remove "object."`,
		"oldObject.spec":               `remove "oldObject."`,
		"after.spec":                   `remove "after."`,
		"Spec.x":                       `did you mean "spec"?`,
		"stringdata":                   `did you mean "stringData"?`,
		"DATA.password":                `did you mean "data"?`,
		"Metadata.labels":              `did you mean "metadata"?`,
		"spec.containers.0.env":        `0 is not a member name: write [*] for every element`,
		"spec.containers[0].env":       `expected [*] for every element`,
		"metadata.annotation.x":        `metadata has no "annotation"`,
		"metadata.managedFields":       "is always removed",
		"metadata.annotations.a.b/c":   `a name with "/" is written ["b/c"]`,
		"metadata.annotations.a.b.c":   `metadata.annotations["a.b.c"]`,
		"metadata.labels[*].x":         "labels hold single values",
		"metadata.creationTimestamp.x": "single value",
		"kind.x":                       "single value",
		"data.p\u0430ssword":           `(U+0430); a name that really has it is written ["`,
		"d\u0430ta.password":           "(U+0430)",
		"data\uff0epassword":           "(U+FF0E)",
		"data\u2024password":           "(U+2024)",
		"data[\"p\u0430ssword\"]":      "(U+0430), which is of another alphabet",
		"spec[\"\u03bfpen\"]":          "(U+03BF), which is of another alphabet",
		`metadata.annotations["example.com/token "]`:       "is no name of annotations",
		`metadata.annotations["example.com/a/token"]`:      "is no name of annotations",
		"metadata.annotations[\"ex\u0430mple.com/token\"]": "(U+0430)",
		`metadata.annotations["*"]`:                        "is no name of annotations",
		`metadata.labels["Example.com/team"]`:              "is no name of labels",
	} {
		if _, err := path.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{
		`metadata.annotations["Example.com/Token"]`, `metadata.labels["example.com/Team_1.x"]`, "metadata.labels.app", `metadata.annotations[*]`,
		"spec[\"\u5bc6\u7801\"]", "spec[\"passw\u00f6rter\"]", `spec.hosts["*.example.com"]`, "spec[\"\u043f\u0430\u0440\u043e\u043b\u044c\"]",
	} {
		if _, err := path.Parse(text); err != nil {
			t.Errorf("%q is a path: %v", text, err)
		}
	}
	for _, text := range []string{"spec", "spec.containers[*].env[*].value", `metadata.annotations["a.b/c"]`, "a-b.c_d.e-f", "metadata", "metadata.labels.app", `data["1"]`, "[*].a", "custom.x"} {
		p, err := path.Parse(text)
		if err != nil || p.String() != text {
			t.Errorf("%q was read as %s (%v)", text, p, err)
		}
	}
}

// FuzzRedactionNeverLeaks compares redaction of bytes with an oracle that decodes: no value at a path remains, everything
// else is unchanged, and invalid JSON is rejected.
func FuzzRedactionNeverLeaks(f *testing.F) {
	for _, body := range []string{
		`{"data":{"a":"c2VjcmV0","b":null},"type":"x","metadata":{"name":"n","labels":{"a":"b"},"finalizers":["f",["g"]],"annotations":{"helm.sh/hook":"x","y":"z","kubectl.kubernetes.io/last-applied-configuration":"{\"data\":1}"}}}`,
		`{"spec":{"env":[{"value":"x"},{"value":{"y":[1,2,"z"]}},[{"value":-1.5e+3}]]},"a\u0062":"\ud83d\ude00\\"}`,
		`{"data":[],"stringData":{},"data2":"x"}`, ` { "data" : { "a" : "b" , "c" : 1 } } `, `{"spec":[[[{"env":{"k":{"value":true}}}]]]}`,
		`{"spec":{"env":{"x":1,"k":{"value":2,"y":3}}},"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"kind\":\"Deployment\",\"spec\":{\"env\":[{\"value\":1}]}}"}}}`,
		`{"metadata":{"annotations":{"x/last-applied":"{\"kind\":\"Deployment\",\"spec\":1}","last-applied":"{\"kind\":\"Secret\"}"}}}`,
		`{"spec":{"env":[{"value":"hunter22"}]},"metadata":{"annotations":{"x":"[{\"value\":\"y\"}]","y":"{\"a\":\"hunter22\"}","z":"[1]"}}}`,
		`{"metadata":[{"name":"x"}],"type":{"a":"b"},"kind":["c"]}`, `{"metadata":{"labels":["x"],"annotations":"y","name":{"z":1}}}`,
	} {
		for how := range uint8(8) {
			f.Add([]byte(body), how)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, how uint8) {
		resource := deployment
		if how&4 != 0 {
			resource = secret
		}
		texts := []string{"spec.env[*].value", "spec.env.k[*]", `list[*]`}
		r := redactorFor(t, []string{Mask, Drop, HMAC}[int(how&3)%3], texts...)
		out, _, err := r.redactBody(body, subject{resource: resource})
		if err != nil {
			return
		}
		if !json.Valid(body) || !json.Valid(out) {
			t.Fatalf("%q became %q", body, out)
		}
		paths, err := parsePaths(texts)
		if err != nil {
			t.Fatal(err)
		}
		o := oracle{drop: r.mode == Drop}
		want, got := o.redactObject(decodeJSON(t, body), paths, resource == secret), decodeJSON(t, out)
		if !o.equalOutput(got, want) {
			t.Fatalf("%q\nbecame\n%q\ndecoded, want\n%v", body, out, want)
		}
	})
}

func decodeJSON(t testing.TB, b []byte) any {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// oracle redacts decoded objects in the simplest way.
type oracle struct {
	drop  bool
	found bool
}

type (
	concealed struct{}               // stands for any redacted value
	gone      struct{}               // removed
	copied    struct{ original any } // redacted, or the original if nothing in it is secret
)

func (o *oracle) redactObject(v any, paths []path.Path, secret bool) any {
	for _, p := range paths {
		v = o.redactPath(v, p)
	}
	m := v.(map[string]any)
	if secret {
		return o.withoutGone(o.showOnly(m, map[string]any{
			"apiVersion": 1, "kind": 1, "type": 1, "immutable": 1,
			"metadata": map[string]any{
				"name": 1, "namespace": 1, "uid": 1, "resourceVersion": 1, "generateName": 1, "generation": 1, "selfLink": 1,
				"creationTimestamp": 1, "deletionTimestamp": 1, "deletionGracePeriodSeconds": 1,
				"labels": map[string]any{}, "annotations": map[string]any{"helm.sh/hook": 1}, "finalizers": []any{1},
			},
		}))
	}
	v = o.withoutGone(m)
	metadata, _ := m["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	for name, value := range annotations {
		if copyKindOf(name) != noCopy {
			annotations[name] = o.redactCopy(value, paths)
		} else {
			annotations[name] = orRedacted(value)
		}
	}
	return v
}

// orRedacted allows a text that may hold JSON to be redacted: TestCopiesInAnnotationsOfAnyNameAreRedacted has when.
func orRedacted(v any) any {
	if text, ok := v.(string); ok && strings.ContainsAny(text, "{[") {
		return copied{v}
	}
	return v
}

// redactCopy redacts a copy of a Deployment.
func (o *oracle) redactCopy(v any, paths []path.Path) any {
	inner := oracle{}
	d := json.NewDecoder(strings.NewReader(fmt.Sprint(v)))
	var object map[string]any
	if _, text := v.(string); v == nil || !o.found && text && d.Decode(&object) == nil && object["kind"] == "Deployment" {
		if v != nil {
			inner.redactObject(object, paths, false)
		}
		if !inner.found {
			return copied{v}
		}
	}
	return o.redactPath(v, nil)
}

// showOnly conceals everything in v except the values listed in shown.
func (o *oracle) showOnly(v, shown any) any {
	switch shown := shown.(type) {
	case map[string]any:
		m, ok := v.(map[string]any)
		if !ok {
			break
		}
		for name := range m {
			m[name] = o.showOnly(m[name], shown[name])
		}
		return m
	case []any:
		list, ok := v.([]any)
		if !ok {
			break
		}
		for i := range list {
			list[i] = o.showOnly(list[i], shown[0])
		}
		return list
	case int:
		switch v.(type) {
		case map[string]any, []any:
		default:
			return orRedacted(v)
		}
	}
	if shown != nil && v == nil {
		return v
	}
	return o.redactPath(v, nil)
}

// redactPath conceals the values at path p.
func (o *oracle) redactPath(v any, p path.Path) any {
	return replaceAt(v, p, func(v any) any {
		if o.drop {
			o.found = true
			return gone{}
		}
		return o.concealValue(v)
	})
}

func replaceAt(v any, p path.Path, with func(any) any) any {
	if len(p) == 0 {
		return with(v)
	}
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			if p[0].Wildcard || p[0].Name == name {
				v[name] = replaceAt(v[name], p[1:], with)
			}
		}
	case []any:
		rest := p
		if p[0].Wildcard {
			rest = p[1:]
		}
		for i := range v {
			v[i] = replaceAt(v[i], rest, with)
		}
	}
	return v
}

func (o *oracle) concealValue(v any) any {
	switch v := v.(type) {
	case nil:
		return nil
	case map[string]any:
		for name := range v {
			v[name] = o.concealValue(v[name])
		}
		return v
	case []any:
		for i := range v {
			v[i] = o.concealValue(v[i])
		}
		return v
	}
	o.found = true
	return concealed{}
}

// withoutGone removes the gone values.
func (o *oracle) withoutGone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			if v[name] = o.withoutGone(v[name]); v[name] == (gone{}) {
				delete(v, name)
			}
		}
		return v
	case []any:
		left := []any{}
		for _, e := range v {
			if e = o.withoutGone(e); e != (gone{}) {
				left = append(left, e)
			}
		}
		return left
	}
	return v
}

func (o *oracle) equalOutput(got, want any) bool {
	want = o.withoutGone(want)
	switch want := want.(type) {
	case concealed:
		s, ok := got.(string)
		return ok && (s == "***" || strings.HasPrefix(s, hashPrefix))
	case copied:
		return o.equalOutput(got, want.original) || o.equalOutput(got, concealed{})
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			return false
		}
		for name, v := range want {
			if c, free := v.(copied); free && o.drop {
				if _, there := got[name]; !there {
					delete(want, name)
					continue
				}
				want[name] = c.original
			}
			if !o.equalOutput(got[name], want[name]) {
				return false
			}
		}
		return len(got) == len(want)
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return false
		}
		for i := range want {
			if !o.equalOutput(got[i], want[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(got, want)
}
