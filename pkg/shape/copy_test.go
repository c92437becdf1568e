package shape

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func quoteJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func gzipBase64(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func TestCopiesOnOtherKindsAreRedacted(t *testing.T) {
	const ofSecret, ofDeployment = `{"apiVersion":"v1","kind":"Secret","data":{"p":"aHVudGVy"}}`, `{"kind":"Deployment","spec":{"replicas":1}}`
	const kubectl = "kubectl.kubernetes.io/last-applied-configuration"
	for name, c := range map[string]struct {
		annotation string
		value      any
		shown      bool
	}{
		"of itself":                      {kubectl, ofDeployment, true},
		"of itself, by kapp":             {"kapp.k14s.io/original", ofDeployment, true},
		"of itself, by Rancher, plain":   {"objectset.rio.cattle.io/applied", ofDeployment, true},
		"of itself, by Rancher, packed":  {"objectset.rio.cattle.io/applied", gzipBase64(t, ofDeployment), false},
		"of a Secret":                    {kubectl, ofSecret, false},
		"of a Secret, by kapp":           {"kapp.k14s.io/original", ofSecret, false},
		"of a Secret, by Banzai":         {"banzaicloud.com/last-applied", gzipBase64(t, ofSecret), false},
		"of a Secret, by KubeVela":       {"app.oam.dev/last-applied-configuration", ofSecret, false},
		"of a Secret, by unknown tool":   {"example.com/Last-Applied", ofSecret, false},
		"of another kind":                {kubectl, `{"kind":"ConfigMap"}`, false},
		"of no kind":                     {kubectl, `{"data":{"p":"aHVudGVy"}}`, false},
		"of two kinds":                   {kubectl, `{"kind":"Secret","data":{"p":"aHVudGVy"},"kind":"Deployment"}`, false},
		"with a name in escapes":         {kubectl, `{"\u006bind":"\u0053ecret","kind":"Deployment"}`, false},
		"a Secret within a copy":         {kubectl, `{"kind":"Deployment","metadata":{"annotations":{"kapp.k14s.io/original":` + quoteJSON(t, ofSecret) + `}}}`, false},
		"itself within a copy":           {kubectl, `{"kind":"Deployment","metadata":{"annotations":{"kapp.k14s.io/original":` + quoteJSON(t, ofDeployment) + `}}}`, true},
		"in YAML":                        {kubectl, "kind: Deployment\n", false},
		"cut short":                      {kubectl, `{"kind":"Deployment","spec":{`, false},
		"with something behind it":       {kubectl, ofDeployment + `{"p":"aHVudGVy"}`, false},
		"no text":                        {kubectl, map[string]string{"p": "aHVudGVy"}, false},
		"null":                           {kubectl, nil, true},
		"empty":                          {kubectl, "", false},
		"kapp's difference":              {"kapp.k14s.io/original-diff", "- p: aHVudGVy", false},
		"kapp's digest of it":            {"kapp.k14s.io/original-diff-md5", "c6e94fd09bdd8ee53d0ef14e0e5f8a47", false},
		"OpenShift's token":              {"openshift.io/token-secret.value", "eyJhbGciOi", false},
		"an annotation that is no copy":  {"example.com/original", ofSecret, true},
		"the name of a token's Secret":   {"openshift.io/token-secret.name", "token-1", true},
		"a copy of what is no Secret":    {kubectl, strings.Replace(ofDeployment, "Deployment", "Secret", 1), false},
		"a copy with nothing but a kind": {kubectl, `{"kind":"Deployment"}`, true},
	} {
		body := `{"kind":"Deployment","metadata":{"annotations":{"a":"b",` + quoteJSON(t, c.annotation) + `:` + quoteJSON(t, c.value) + `}},"spec":{}}`
		for _, mode := range []string{Mask, HMAC, Drop} {
			if got := redactWith(t, redactorFor(t, mode), deployment, body); (got == body) != c.shown {
				t.Errorf("%s, %s: %s became %s", name, mode, body, got)
			}
		}
		if got := redactWith(t, redactorFor(t, Mask), event.Resource{Resource: "secrets", Kind: "Secret"}, body); c.value != nil && strings.Contains(got, quoteJSON(t, c.value)) && !strings.Contains(c.annotation, ".name") {
			t.Errorf("%s, of a Secret: %s", name, got)
		}
	}
}

func TestCopiesOfSecretsInAnotherGroupAreRedacted(t *testing.T) {
	other := event.Resource{Group: "example.com", Version: "v1", Resource: "secrets", Kind: "Secret"}
	body := `{"metadata":{"annotations":{"kapp.k14s.io/original":` + quoteJSON(t, `{"apiVersion":"v1","kind":"Secret","data":{"p":"aHVudGVy"}}`) + `}}}`
	if got := redactWith(t, redactorFor(t, Mask), other, body); strings.Contains(got, "aHVudGVy") {
		t.Error(got)
	}
}

func TestLabelsAndAnnotationsOfSecretsAreShownByName(t *testing.T) {
	const body = `{"metadata":{"labels":{"a":"1","b":"2"},"annotations":{"example.com/owner":"x","example.com/other":"y","helm.sh/hook":"z"}}}`
	for name, c := range map[string]struct {
		shown SecretMetadata
		paths []string
		want  string
	}{
		"nothing more":        {SecretMetadata{}, nil, `{"metadata":{"labels":{"a":"***","b":"***"},"annotations":{"example.com/owner":"***","example.com/other":"***","helm.sh/hook":"z"}}}`},
		"by name":             {SecretMetadata{Labels: []string{"b"}, Annotations: []string{"example.com/owner"}}, nil, `{"metadata":{"labels":{"a":"***","b":"2"},"annotations":{"example.com/owner":"x","example.com/other":"***","helm.sh/hook":"z"}}}`},
		"all labels":          {SecretMetadata{Labels: []string{"*"}}, nil, `{"metadata":{"labels":{"a":"1","b":"2"},"annotations":{"example.com/owner":"***","example.com/other":"***","helm.sh/hook":"z"}}}`},
		"redactPaths go over": {SecretMetadata{Labels: []string{"*"}}, []string{"metadata.labels.a", `metadata.annotations["helm.sh/hook"]`}, `{"metadata":{"labels":{"a":"***","b":"2"},"annotations":{"example.com/owner":"***","example.com/other":"***","helm.sh/hook":"***"}}}`},
	} {
		paths, err := parsePaths(c.paths)
		if err != nil {
			t.Fatal(err)
		}
		r, err := newRedactor(Policy{SecretMetadata: c.shown}, paths, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := redactWith(t, r, secret, body); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", name, got, c.want)
		}
	}
}

func TestSecretsOfAnyFormAreRedacted(t *testing.T) {
	for _, body := range []string{
		`{"metadata":"hunter"}`, `{"metadata":["hunter"]}`, `{"type":{"a":"hunter"}}`, `{"kind":["hunter"]}`, `{"metadata":{"name":{"a":"hunter"}}}`,
		`{"metadata":{"labels":"hunter"}}`, `{"metadata":{"annotations":["hunter"]}}`, `{"metadata":{"annotations":{"helm.sh/hook":{"a":"hunter"}}}}`,
		`{"metadata":{"finalizers":"hunter"}}`, `{"metadata":{"finalizers":[["hunter"]]}}`, `{"metadata":{"ownerReferences":"hunter"}}`,
		`{"metadata":{"ownerReferences":["hunter",{"name":["hunter"]}]}}`, `{"metadata":{"ownerReferences":{"name":"hunter"}}}`, `{"spec":"hunter"}`, `{"":"hunter"}`,
	} {
		for _, mode := range []string{Mask, HMAC, Drop} {
			if got := redactWith(t, redactorFor(t, mode), secret, body); strings.Contains(got, "hunter") {
				t.Errorf("%s, %s: %s", body, mode, got)
			}
		}
	}
}

func TestTheListOfHarmlessAnnotationsIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/shaping.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "### Annotations of Secrets that are shown")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(section, -1) {
		documented = append(documented, m[1])
	}
	if !slices.Equal(documented, harmlessAnnotations) {
		t.Errorf("docs/shaping.md lists\n%q\nand shown are\n%q", documented, harmlessAnnotations)
	}
	for _, name := range harmlessAnnotations {
		if copyKindOf(name) != noCopy || !isQualifiedName(name) {
			t.Errorf("%s is not harmless", name)
		}
	}
}
