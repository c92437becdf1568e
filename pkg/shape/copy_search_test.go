package shape

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestCopiesInAnnotationsOfAnyNameAreRedacted(t *testing.T) {
	crd := event.Resource{Group: "example.com", Version: "v1", Resource: "databases", Kind: "Database"}
	paths := []string{"spec.password", "spec.template.spec.containers[*].env[*].value", "spec.auth.tokens[*]"}
	const now, before = `"hunter-now"`, `"hunter-old"` // the object's value, and an earlier one
	for name, c := range map[string]struct {
		annotation string
		value      string
		shown      bool
	}{
		"kopf":                         {"kopf.zalando.org/last-handled-configuration", `{"spec":{"password":"hunter-old","size":1}}` + "\n", false},
		"Cluster API":                  {"cluster.x-k8s.io/conversion-data", `{"metadata":{"name":"a"},"spec":{"password":"hunter-old"},"status":{}}`, false},
		"another version's names":      {"cluster.x-k8s.io/conversion-data", `{"spec":{"secret":{"plain":"hunter-now"}}}`, false},
		"an unknown name":              {"example.com/x", `{"spec":{"password":"hunter-now"}}`, false},
		"within something":             {"example.com/x", `{"history":[{"n":1,"object":{"spec":{"password":"hunter-old"}}}]}`, false},
		"of a part":                    {"example.com/x", `{"password":"hunter-old"}`, false},
		"of a list":                    {"example.com/x", `[{"name":"A","value":"hunter-old"}]`, false},
		"of a deep list":               {"example.com/x", `{"pod":{"containers":[{"env":[{"name":"A","value":"hunter-old"}]}]}}`, false},
		"of a map":                     {"example.com/x", `{"auth":{"tokens":{"a":"hunter-old"}}}`, false},
		"a value in a longer text":     {"example.com/x", `{"dsn":"postgres://u:hunter-now@db"}`, false},
		"a text within a text":         {"example.com/x", quoteJSON(t, map[string]string{"object": `{"spec":{"password":"hunter-old"}}`}), false},
		"too many texts within texts":  {"example.com/x", quoteJSON(t, []string{quoteJSON(t, []string{quoteJSON(t, []string{quoteJSON(t, []string{`["hunter-old"]`})})})}), false},
		"cut short":                    {"example.com/x", `{"spec":{"secret":"hunter-now","a`, false},
		"in escapes":                   {"example.com/x", "{\"spec\":{\"p\\u0061ssword\":\"hunter-old\"}}", false},
		"a value as a name":            {"example.com/x", `{"used":{"hunter-now":true}}`, false},
		"a value within a name":        {"example.com/x", `{"used":{"u:hunter-now@db":1}}`, false},
		"lines of JSON":                {"example.com/x", `{"n":1}` + "\n" + `{"spec":{"password":"hunter-old"}}`, false},
		"what Python writes":           {"example.com/x", `{"n":NaN,"spec":{"password":"hunter-old"}}`, false},
		"a byte order mark":            {"example.com/x", "\ufeff" + `{"spec":{"password":"hunter-old"}}`, false},
		"in escapes, cut short":        {"example.com/x", "{\"x\":\"h\\u0075nter-now\",\"a", false},
		"nested too deep":              {"example.com/x", strings.Repeat("[", 10_001) + `{"spec":{"p` + "\\u0061" + `ssword":"hunter-old"}}` + strings.Repeat("]", 10_001), false},
		"an address":                   {"example.com/x", `[::1]:8080`, true},
		"a template":                   {"example.com/x", `{{ .Values.image }}`, true},
		"of something else":            {"example.com/x", `{"spec":{"size":1,"name":"a"},"status":{"password":null}}`, true},
		"already redacted":             {"example.com/x", `{"spec":{"password":"***"}}`, true},
		"a status of a network plugin": {"k8s.v1.cni.cncf.io/network-status", `[{"name":"a","interface":"eth0","ips":["10.0.0.1"]}]`, true},
		"no JSON":                      {"example.com/x", `size 1`, true},
	} {
		for _, mode := range []string{Mask, HMAC, Drop} {
			annotations := `"metadata":{"annotations":{"a":"b",` + quoteJSON(t, c.annotation) + `:` + quoteJSON(t, c.value) + `}}`
			spec := `"spec":{"password":` + now + `,"size":1}`
			for _, body := range []string{`{"kind":"Database",` + annotations + `,` + spec + `}`, `{"kind":"Database",` + spec + `,` + annotations + `}`} {
				got := redactWith(t, redactorFor(t, mode, paths...), crd, body)
				if strings.Contains(got, quoteJSON(t, c.value)) != c.shown || strings.Contains(got, "hunter") {
					t.Errorf("%s, %s: %s became %s", name, mode, body, got)
				}
			}
			body := `{` + annotations + `}` // the object has no such value any more
			if got := redactWith(t, redactorFor(t, mode, paths...), crd, body); strings.Contains(got, "spec") && strings.Contains(got, strings.Trim(before, `"`)) {
				t.Errorf("%s, %s, without a value: %s became %s", name, mode, body, got)
			}
			if got := redactWith(t, redactorFor(t, mode), crd, body); got != body {
				t.Errorf("%s, %s, without paths: %s became %s", name, mode, body, got)
			}
		}
	}
}

// TestTheLimitsOfTheSearchAreThoseOfTheDocs: what docs/shaping.md lists as not found is shown, and a path to the annotation
// hides it.
func TestTheLimitsOfTheSearchAreThoseOfTheDocs(t *testing.T) {
	crd := event.Resource{Group: "example.com", Version: "v1", Resource: "databases", Kind: "Database"}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := io.WriteString(w, `{"spec":{"password":"hunter-now"}}`); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/shaping.md")
	if err != nil {
		t.Fatal(err)
	}
	for words, value := range map[string]string{
		"YAML":                    "spec:\n  password: hunter-now\n",
		"a plain text":            "hunter-now",
		"a JSON string instead":   `"hunter-now"`,
		"JSON in base64":          base64.StdEncoding.EncodeToString([]byte(`{"spec":{"password":"hunter-now"}}`)),
		"compressed":              base64.StdEncoding.EncodeToString(packed.Bytes()),
		"in another case":         `{"x":"HUNTER-NOW"}`,
		"under names that no":     `{"x":{"formerly":"hunter-old"}}`,
		"only a part of a value.": `{"x":"hunter-"}`,
		"in another notation":     `{"x":1.23456e5}`,
	} {
		if !strings.Contains(string(page), words) {
			t.Errorf("docs/shaping.md does not list %q", words)
		}
		body := `{"kind":"Database","metadata":{"annotations":{"example.com/state":` + quoteJSON(t, value) + `}},"spec":{"password":"hunter-now","pin":123456}}`
		if got := redactWith(t, redactorFor(t, Mask, "spec.password", "spec.pin"), crd, body); !strings.Contains(got, quoteJSON(t, value)) {
			t.Errorf("%s is found: the page may promise that; %s", words, got)
		}
		named := redactWith(t, redactorFor(t, Mask, "spec.password", `metadata.annotations["example.com/state"]`), crd, body)
		if strings.Contains(named, quoteJSON(t, value)) {
			t.Errorf("%s: a path to the annotation leaves %s", words, named)
		}
	}
}

// TestOnlyTheOwnAnnotationsOfAnObjectAreSearched: those of a template in it, and labels, are shown.
func TestOnlyTheOwnAnnotationsOfAnObjectAreSearched(t *testing.T) {
	template := `"template":{"metadata":{"annotations":{"example.com/state":"{\"password\":\"hunter-now\"}"}}}`
	body := `{"kind":"Database","metadata":{"labels":{"x":"hunter-now"}},"spec":{"password":"hunter-now",` + template + `}}`
	got := redactWith(t, redactorFor(t, Mask, "spec.password"), event.Resource{Resource: "databases", Kind: "Database"}, body)
	if !strings.Contains(got, template) || !strings.Contains(got, `"labels":{"x":"hunter-now"}`) {
		t.Errorf("%s became %s: the page may promise that", body, got)
	}
}

func TestValuesOfASecretAreSearchedInItsShownAnnotations(t *testing.T) {
	r, err := newRedactor(Policy{SecretMetadata: SecretMetadata{Annotations: []string{"example.com/x", "example.com/owner"}}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{`{"password":"hunter2hunter2"}`, `{"data":{"p":"ZWFybGllcg=="}}`, `["aHVudGVyMmh1bnRlcjI="]`} {
		body := `{"kind":"Secret","metadata":{"annotations":{"example.com/owner":"{\"team\":\"a\"}","example.com/x":` + quoteJSON(t, value) +
			`}},"data":{"p":"aHVudGVyMmh1bnRlcjI="}}`
		want := `{"kind":"Secret","metadata":{"annotations":{"example.com/owner":"{\"team\":\"a\"}","example.com/x":"***"}},"data":{"p":"***"}}`
		if got := redactWith(t, r, secret, body); got != want {
			t.Errorf("%s became %s", body, got)
		}
	}
}
