package source

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
)

const wholeDeployment = `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"shop","uid":"u-1",` +
	`"resourceVersion":"7","generation":3,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"\u003cweb\u003e"},` +
	`"managedFields":[{"manager":"kubectl","operation":"Apply","apiVersion":"apps/v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}}]},` +
	`"spec":{"replicas":3},"status":{}}`

const bareDeployment = `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"shop","uid":"u-1",` +
	`"resourceVersion":"7","generation":3,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"\u003cweb\u003e"}}}`

func bareWire() *wire {
	return newWire(Scope{MetadataOnly: true, Resource: event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}})
}

// inProtobuf is what an API server makes of a message.
func inProtobuf(t testing.TB, kind string, message interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	raw, err := message.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{Kind: kind, APIVersion: "meta.k8s.io/v1"}, Raw: raw}
	b, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(bytes.Clone(protobufMagic), b...)
}

func partial(t testing.TB) *metav1.PartialObjectMetadata {
	t.Helper()
	m := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal([]byte(wholeDeployment), m); err != nil {
		t.Fatal(err)
	}
	m.Kind, m.APIVersion = "PartialObjectMetadata", "meta.k8s.io/v1"
	return m
}

// However metadata comes, an object has the same bytes, and changes of it the same class and actor.
func TestMetadataIsTheSameHoweverItCame(t *testing.T) {
	asJSON, err := json.Marshal(partial(t))
	if err != nil {
		t.Fatal(err)
	}
	asList := fmt.Sprintf(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"items":[%s]}`, asJSON)
	protobufList := inProtobuf(t, "PartialObjectMetadataList", &metav1.PartialObjectMetadataList{
		ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []metav1.PartialObjectMetadata{*partial(t)},
	})
	w := bareWire()
	from := func(o runtime.Object, err error) *deltas.Object {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if l, ok := o.(*list); ok {
			if l.ResourceVersion != "9" || len(l.Items) != 1 {
				t.Fatalf("list %+v", l)
			}
			return l.Items[0]
		}
		return o.(*deltas.Object)
	}
	whole := from((&wire{}).decode([]byte(wholeDeployment)))
	first := from(w.decode(asJSON))
	for name, o := range map[string]*deltas.Object{
		"whole object":     from(w.decode([]byte(wholeDeployment))),
		"JSON":             first,
		"JSON list":        from(w.decode([]byte(asList))),
		"protobuf":         from(w.decodeProtobuf(inProtobuf(t, "PartialObjectMetadata", partial(t)))),
		"protobuf in list": from(w.decodeProtobuf(protobufList)),
	} {
		if string(o.Raw) != bareDeployment {
			t.Errorf("%s:\n%s\nwant\n%s", name, o.Raw, bareDeployment)
		}
		if o.Key() != "shop/web" || o.UID != "u-1" || o.ResourceVersion != "7" || o.Generation != 3 || o.Resource.Kind != "Deployment" {
			t.Errorf("%s: %+v", name, o)
		}
		if o.Summary != first.Summary || o.Names != whole.Names {
			t.Errorf("%s: summary %q, names %q", name, o.Summary, o.Names)
		}
	}
	if first.Summary == whole.Summary {
		t.Error("the summary does not say that there was nothing but metadata")
	}
}

func TestAnErrorInProtobufKeepsItsMeaning(t *testing.T) {
	status := apierrors.NewResourceExpired("too old resource version: 1 (2)").ErrStatus
	o, err := bareWire().decodeProtobuf(inProtobuf(t, "Status", &status))
	if err != nil || judge(apierrors.FromObject(o)) != expired {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestBrokenProtobufIsAnError(t *testing.T) {
	w := bareWire()
	good := inProtobuf(t, "PartialObjectMetadata", partial(t))
	for name, b := range map[string][]byte{
		"nothing": nil, "JSON": []byte("{}"), "magic alone": protobufMagic, "cut off": good[:len(good)-9], "another kind": inProtobuf(t, "Pod", partial(t)),
	} {
		if o, err := w.decodeProtobuf(b); err == nil {
			t.Errorf("%s: read as %+v", name, o)
		}
	}
	var event metav1.WatchEvent
	if _, _, err := (metadataEnvelope{w}).Decode([]byte{0xff, 0xff}, nil, &event); err == nil {
		t.Error("a broken envelope was read")
	}
}

func FuzzProtobufNeverPanics(f *testing.F) {
	f.Add(inProtobuf(f, "PartialObjectMetadata", partial(f)))
	f.Add([]byte("k8s\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := bareWire().decodeProtobuf(b)
		if object, ok := o.(*deltas.Object); err == nil && ok && !json.Valid(object.Raw) {
			t.Errorf("made %q", object.Raw)
		}
	})
}

// metadataOf makes a Source read metadata alone.
func metadataOf(c *Config) { c.Rules[0].Capture = CaptureMetadata }

// TestAnAPIServerWithoutMetadataIsReadAllTheSame uses a fake that knows whole objects only.
func TestAnAPIServerWithoutMetadataIsReadAllTheSame(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.write("ADDED", "a")
	_, _, _ = running(t, f, st, metadataOf)
	st.awaitTold(t, "snapshot a@11")
	if got, want := string(st.change(0).After), `{"kind":"Kind","apiVersion":"v1","metadata":{"name":"a","namespace":"ns","uid":"uid-a","resourceVersion":"11"}}`; got != want {
		t.Errorf("body %s, want %s", got, want)
	}
}

func TestMetadataOnARealAPIServer(t *testing.T) {
	p := startPlane(t)
	st, f := newStore(), newFakeAPI(t)
	p.create(t, "a")
	p.call(t, "PUT", secretsPath+"/a", `{"metadata":{"name":"a"},"data":{"password":"c2VjcmV0"}}`)
	a := p.update(t, "a", "1")
	p.define(t, "widgets")
	w := p.createWidget(t, "w")
	selected := p.on("secrets", "widgets.example.com")
	bare := func(c *Config) { selected(c); metadataOf(c) }

	s, log, stop := running(t, f, st, bare)
	st.await(t, "both objects", func() bool { return len(st.told()) == 2 })
	if got := toldSince(st, 0); !slices.Equal(got, []string{"snapshot a@" + a, "snapshot w@" + w}) {
		t.Fatalf("told %q\nlog\n%s", got, log)
	}
	for i := range 2 {
		c := st.change(i)
		var body map[string]json.RawMessage
		if err := json.Unmarshal(c.After, &body); err != nil {
			t.Fatal(err)
		}
		if len(body) != 3 || string(body["kind"]) != `"`+c.Resource.Kind+`"` || bytes.Contains(c.After, []byte("managedFields")) {
			t.Errorf("body %s", c.After)
		}
	}
	a = p.update(t, "a", "2")
	st.await(t, "the update", func() bool { return st.told()[len(st.told())-1] == "updated a@"+a })
	for _, one := range s.Status() {
		if one.DecodeErrors != 0 || one.Lists != 0 {
			t.Errorf("status %+v", one)
		}
	}
	stop()

	// Another capture after a restart is no news of what did not change.
	for _, adjust := range []func(*Config){selected, bare} {
		n := len(st.told())
		s, _, stop = running(t, f, st, adjust)
		a = p.update(t, "a", fmt.Sprint("again", n))
		st.await(t, "the update", func() bool { return st.told()[len(st.told())-1] == "updated a@"+a })
		st.await(t, "live", func() bool {
			return !slices.ContainsFunc(s.Status(), func(one Status) bool { return one.State != Live })
		})
		stop()
		if got := toldSince(st, n); len(got) != 1 {
			t.Errorf("told %q", got)
		}
	}
}

// A 406 is not an outage: it is the answer of an API server that has no such form. It does not come, since whole objects are
// accepted too; this holds what is asked for.
func TestMetadataIsAskedForInEveryForm(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	accepted := make(chan string, 1)
	f.faults = []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
		accepted <- r.Header.Get("Accept")
		writeStatus(w, apierrors.NewServiceUnavailable("later"))
	}}
	_, _, _ = running(t, f, st, metadataOf)
	forms := strings.Split(<-accepted, ",")
	if len(forms) != 3 || !strings.HasPrefix(forms[0], runtime.ContentTypeProtobuf+";as=PartialObjectMetadata") ||
		!strings.HasPrefix(forms[1], "application/json;as=PartialObjectMetadata") || forms[2] != "application/json" {
		t.Errorf("accepts %q", forms)
	}
}
