package audit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// full is an event as an API server writes it, with a body that must not be kept.
const full = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"c0ffee","stage":"ResponseComplete",` +
	`"requestURI":"/api/v1/namespaces/shop/secrets/db?fieldManager=x","verb":"patch","user":{"username":"ann","uid":"u-1","groups":["a","b"],` +
	`"extra":{"authentication.kubernetes.io/credential-id":["JTI=hidden"]}},"impersonatedUser":{"username":"bob","groups":["c"]},"authenticationMetadata":{"impersonationConstraint":"impersonate:user-info"},` +
	`"sourceIPs":["10.0.0.1","10.0.0.2"],"userAgent":"kubectl/\"v1\"","objectRef":{"resource":"secrets","namespace":"shop","name":"db","uid":"r-1",` +
	`"apiGroup":"","apiVersion":"v1","resourceVersion":"41","subresource":"status"},"responseStatus":{"metadata":{},"code":200},` +
	`"requestObject":{"data":{"password":"SECRET"}},"responseObject":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"db","uid":"o-1",` +
	`"resourceVersion":"42","deletionTimestamp":"2026-01-02T03:04:05Z","deletionGracePeriodSeconds":0,"finalizers":["x"],` +
	`"annotations":{"a":"SECRET"}},"data":{"password":"SECRET","uid":"fake"}},"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z",` +
	`"stageTimestamp":"2026-01-02T03:04:05.000002Z","annotations":{"authorization.k8s.io/reason":"SECRET","kubecdc-identity/uid":"o-1","kubecdc-identity/replaces":"41","kubecdc-identity/unchanged":"40"}}`

func TestScanKeepsNoBody(t *testing.T) {
	e, err := Scan([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	want := Event{
		Outcome: Stored, ID: "c0ffee", Stage: "ResponseComplete", Verb: "patch", Code: 200, User: "ann", UserUID: "u-1", Groups: []string{"a", "b"},
		Impersonated: &User{Name: "bob", Groups: []string{"c"}}, Constraint: "impersonate:user-info", UserAgent: `kubectl/"v1"`, SourceIPs: []string{"10.0.0.1", "10.0.0.2"},
		Received: parseTime("2026-01-02T03:04:05.000001Z"), Done: parseTime("2026-01-02T03:04:05.000002Z"),
		Resource: "secrets", Subresource: "status", Namespace: "shop", Name: "db", ResourceVersion: "41",
		Answer: Object{UID: "o-1", ResourceVersion: "42", Deleting: true, Held: true}, NotedUID: "o-1", Replaces: "41", Unchanged: "40",
	}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("got  %+v\nwant %+v", e, want)
	}
	kept, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{"SECRET", "hidden", "fake"} {
		if strings.Contains(string(kept), hidden) {
			t.Errorf("%q is kept: %s", hidden, kept)
		}
	}
}

// answered returns an event of a request for widgets or, without a group, pods.
func answered(verb, group, answer string) string {
	return `{"stage":"ResponseComplete","responseObject":` + answer + `,"verb":"` + verb + `","responseStatus":{"code":200},` +
		`"objectRef":{"resource":"pods","apiGroup":"` + group + `"}}`
}

func TestResponsesInEveryForm(t *testing.T) {
	const object, widgets = `{"uid":"u","resourceVersion":"7"}`, "example.io"
	own := Object{UID: "u", ResourceVersion: "7"}
	row := `"rows":[{"cells":["x"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":` + object + `}}]}`
	for what, test := range map[string]struct {
		verb, group, answer string
		want                Object
		items               []Object
	}{
		"an object":             {"create", "", `{"kind":"Pod","apiVersion":"v1","metadata":` + object + `}`, own, nil},
		"a Table":               {"patch", "", `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},` + row, own, nil},
		"a status":              {"delete", "", `{"kind":"Status","apiVersion":"v1","metadata":` + object + `,"details":{"uid":"x"}}`, Object{}, nil},
		"a namespace":           {"update", "", `{"kind":"Namespace","apiVersion":"v1","spec":{"finalizers":["kubernetes"]},"metadata":` + object + `}`, Object{UID: "u", ResourceVersion: "7", Held: true}, nil},
		"a namespace let go":    {"update", "", `{"spec":{"finalizers":[]},"kind":"Namespace","apiVersion":"v1","metadata":` + object + `}`, own, nil},
		"finalizers of its own": {"patch", widgets, `{"kind":"Widget","apiVersion":"example.io/v1","spec":{"finalizers":["x"]},"metadata":` + object + `}`, own, nil},
		"rows of its own":       {"patch", widgets, `{"kind":"Table","apiVersion":"example.io/v1","metadata":` + object + `,"rows":[{"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"uid":"v","resourceVersion":"99999999999999999999"}}}]}`, own, nil},
		"another group":         {"patch", widgets, `{"kind":"Pod","apiVersion":"v1","metadata":` + object + `}`, Object{}, nil},
		"a list":                {"deletecollection", "", `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[{"metadata":` + object + `},{"metadata":{"uid":"v","resourceVersion":"8","finalizers":["x"]}}]}`, Object{}, []Object{own, {UID: "v", ResourceVersion: "8", Held: true}}},
		"a Table of a list":     {"deletecollection", "", `{"kind":"Table","apiVersion":"meta.k8s.io/v1",` + strings.TrimSuffix(row, "]}") + `,{"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"uid":"v","resourceVersion":"8","finalizers":["x"]}}},{"object":null}]}`, Object{}, []Object{own, {UID: "v", ResourceVersion: "8", Held: true}}},
		"a Table of two rows":   {"patch", "", `{"kind":"Table","apiVersion":"meta.k8s.io/v1",` + strings.TrimSuffix(row, "]}") + `,{"object":null}]}`, Object{}, nil},
		"an object with items":  {"patch", widgets, `{"kind":"Widget","apiVersion":"example.io/v1","metadata":` + object + `,"items":[{"metadata":{"uid":"v"}}]}`, own, nil},
		"null":                  {"patch", "", `null`, Object{}, nil},
		"not deleting":          {"patch", "", `{"apiVersion":"v1","metadata":{"uid":"u","resourceVersion":"7","deletionTimestamp":null,"finalizers":null,"deletionGracePeriodSeconds":30}}`, Object{UID: "u", ResourceVersion: "7", Grace: true}, nil},
	} {
		e, err := Scan([]byte(answered(test.verb, test.group, test.answer)))
		if err != nil || e.Answer != test.want || !reflect.DeepEqual(e.Items, test.items) {
			t.Errorf("%s: %+v %+v %v", what, e.Answer, e.Items, err)
		}
	}
	scale := strings.Replace(answered("patch", "apps", `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":`+object+`}`), `"resource"`, `"subresource":"scale","resource"`, 1)
	if e, err := Scan([]byte(scale)); err != nil || e.Answer != own {
		t.Errorf("a scale: %+v %v", e.Answer, err)
	}
}

func TestImmediateDeletesNameTheObject(t *testing.T) {
	e, err := Scan([]byte(`{"stage":"ResponseComplete","verb":"delete","responseStatus":{"status":"Success","details":{"name":"a","uid":"u-1"},"code":200}}`))
	if err != nil || e.DeletedUID != "u-1" || e.Code != 200 {
		t.Errorf("%+v %v", e, err)
	}
}

// TestOutcomeFollowsFromOptions has the options in query and body as kube-apiserver reads them; what cannot be known is not
// stored for certain.
func TestOutcomeFollowsFromOptions(t *testing.T) {
	const dry, real = `{"kind":"DeleteOptions","dryRun":["All"]}`, `{"kind":"DeleteOptions","dryRun":[]}`
	for _, test := range []struct {
		level, verb, sub, query, body, noted string
		want                                 Outcome
	}{
		{"Metadata", "patch", "", "x=1&dryRun=All", "", "", NotStored},
		{"Metadata", "patch", "", "dryRu%6E=All", "", "", NotStored},
		{"Metadata", "patch", "", "x-dryRun=All&fieldManager=dryRun=All", "", "", Stored},
		{"Metadata", "update", "", "dryrun=All", dry, "", Stored},
		{"Request", "delete", "", "", dry, "", NotStored},
		{"Request", "delete", "", "dryRun=All", real, "", Stored},
		{"Request", "delete", "", "dryRun=All", "", "", NotStored},
		{"Request", "delete", "", "", "", "", Stored},
		{"Request", "deletecollection", "", "", dry, "", NotStored},
		{"Metadata", "delete", "", "", "", "", OutcomeUnknown},
		{"Metadata", "delete", "", "dryRun=All", "", "", OutcomeUnknown},
		{"Metadata", "delete", "", "dryRun=All", "", "false", Stored},
		{"Metadata", "delete", "", "", "", "true", NotStored},
		{"Request", "create", "eviction", "", `{"deleteOptions":` + dry + `}`, "", NotStored},
		{"Request", "create", "eviction", "dryRun=All", `{"deleteOptions":` + real + `}`, "", NotStored},
		{"Request", "create", "eviction", "", dry, "", Stored},
		{"Request", "create", "eviction", "", `{"metadata":{"name":"x"}}`, "", Stored},
		{"Request", "create", "eviction", "", "", "", OutcomeUnknown},
		{"Metadata", "create", "eviction", "", "", "", OutcomeUnknown},
		{"Metadata", "create", "eviction", "dryRun=All", "", "false", NotStored},
	} {
		text := fmt.Sprintf(`{"stage":"ResponseComplete","level":%q,"verb":%q,"requestURI":"/api/v1/x/dryRun=All?%s","objectRef":{"resource":"pods","subresource":%q},`+
			`"responseStatus":{"code":200},"annotations":{"kubecdc-identity/dryRun":%q}%s}`, test.level, test.verb, test.query, test.sub, test.noted, member("requestObject", test.body))
		if e, err := Scan([]byte(text)); err != nil || e.Outcome != test.want {
			t.Errorf("%+v: %v %v", test, e.Outcome, err)
		}
	}
}

func member(key, value string) string {
	if value == "" {
		return ""
	}
	return fmt.Sprintf(",%q:%s", key, value)
}

func TestListsAndSingleEvents(t *testing.T) {
	for text, want := range map[string]int{
		full: 1,
		`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[` + full + `,` + full + `]}`: 2,
		`{"items":[],"apiVersion":"audit.k8s.io/v1"}`:                                                           0,
	} {
		if all, err := Append(nil, []byte(text)); err != nil || len(all) != want {
			t.Errorf("%.60s: %d events, %v; want %d", text, len(all), err, want)
		}
	}
}

func TestMalformedEventsAreRejectedWithoutQuoting(t *testing.T) {
	for _, text := range []string{
		``, `null`, `"SECRET"`, `{"stage":"x"} SECRET`, `{"stage":"SECRET`, `{}`, `[` + full + `]`, full[:len(full)-1],
		`{"apiVersion":"audit.k8s.io/v1beta1","stage":"SECRET"}`, `{"apiVersion":"v1","items":[{"stage":"SECRET"}]}`,
		`{"apiVersion":"audit.k8s.io/v1","items":[{"stage":"SECRET"},]}`,
	} {
		all, err := Append([]Event{{ID: "before"}}, []byte(text))
		if err == nil || strings.Contains(err.Error(), "SECRET") || len(all) != 1 {
			t.Errorf("%.60s: %d events, %v", text, len(all), err)
		}
	}
}

func FuzzAppend(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[` + full + `]}`))
	f.Add([]byte(`{"stage":"x","responseObject":{"kind":"Table","rows":[{"object":null},{"object":{}}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := Append(nil, b)
		if _, unwritable := json.Marshal(all); unwritable != nil || err != nil && len(all) > 0 {
			t.Errorf("%d events, %v: %v", len(all), err, unwritable)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	text := []byte(strings.Replace(full, `"data":{`, `"data":{"filler":"`+strings.Repeat("x", 600)+`",`, 1))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Scan(text); err != nil {
			b.Fatal(err)
		}
	}
}
