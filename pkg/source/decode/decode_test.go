package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// podDecoder decodes Pods.
func podDecoder() *Decoder {
	return New(event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, false)
}

// objectNames reads a stream to its end.
func objectNames(d *Decoder, stream io.Reader) (got []string, err error) {
	for s := d.Stream(stream); ; {
		e, _, err := s.Next()
		if err != nil {
			return got, err
		}
		got = append(got, string(e.Type)+" "+e.Object.Name)
	}
}

const threeEvents = `{"type":"ADDED","object":{"metadata":{"name":"a"}}}
{"type":"MODIFIED","object":{"metadata":{"name":"b"}}}

{"type":"DELETED","object":{"metadata":{"name":"c"}}}
`

func TestEventsAreReadInAnyChunking(t *testing.T) {
	long := `{"type":"ADDED","object":{"metadata":{"name":"long"},"data":"` + strings.Repeat("x", 200_000) + `"}}` + "\n"
	for name, r := range map[string]io.Reader{
		"whole":        strings.NewReader(threeEvents + long),
		"byte by byte": iotest.OneByteReader(strings.NewReader(threeEvents + long)),
		"in halves":    iotest.HalfReader(strings.NewReader(threeEvents + long)),
		"with the end": iotest.DataErrReader(strings.NewReader(threeEvents + long)),
	} {
		got, err := objectNames(podDecoder(), r)
		if want := "ADDED a,MODIFIED b,DELETED c,ADDED long"; strings.Join(got, ",") != want || !errors.Is(err, ErrEnd) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestObjectWithoutNameIsRejected: downstream, objects are identified by name.
func TestObjectWithoutNameIsRejected(t *testing.T) {
	for _, object := range []string{`{}`, `{"metadata":null}`, `{"metadata":{"uid":"u","resourceVersion":"7"}}`} {
		got, err := objectNames(podDecoder(), strings.NewReader(threeEvents+`{"type":"ADDED","object":`+object+"}\n"))
		if len(got) != 3 || err == nil || !strings.Contains(err.Error(), "metadata.name") {
			t.Errorf("%s in a watch: %v, %v", object, got, err)
		}
		_, err = podDecoder().List(strings.NewReader(`{"metadata":{},"items":[`+object+`]}`), nil, func(o *deltas.Object) error {
			t.Errorf("%s in a list was accepted as %+v", object, o)
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "metadata.name") {
			t.Errorf("%s in a list: %v", object, err)
		}
	}
}

func TestErrorEventHasAMessage(t *testing.T) {
	for _, status := range []string{`{}`, `{"kind":"Status","status":"Success","code":200}`, `{"kind":"Status","code":429,"reason":"TooManyRequests"}`} {
		if _, err := objectNames(podDecoder(), strings.NewReader(`{"type":"ERROR","object":`+status+"}\n")); err == nil || err.Error() == "" {
			t.Errorf("%s: %q", status, err)
		}
	}
}

func TestTruncatedEventIsDropped(t *testing.T) {
	got, err := objectNames(podDecoder(), strings.NewReader(threeEvents[:len(threeEvents)-5]))
	if strings.Join(got, ",") != "ADDED a,MODIFIED b" || !errors.Is(err, ErrEnd) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestReadErrorIsReturned(t *testing.T) {
	broken := errors.New("broken")
	got, err := objectNames(podDecoder(), io.MultiReader(strings.NewReader(threeEvents), iotest.ErrReader(broken)))
	if len(got) != 3 || !errors.Is(err, broken) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestReformattedStreamUsesStockJSON(t *testing.T) {
	indented := strings.ReplaceAll(threeEvents, `,"object":`, ",\n  \"object\": ")
	d := podDecoder()
	for range 2 {
		if got, err := objectNames(d, strings.NewReader(indented)); len(got) != 0 || errors.Is(err, ErrEnd) {
			t.Fatalf("line framing read %v, %v", got, err)
		}
	}
	got, err := objectNames(d, strings.NewReader(indented))
	if strings.Join(got, ",") != "ADDED a,MODIFIED b,DELETED c" || !errors.Is(err, ErrEnd) {
		t.Errorf("stock framing read %v, %v", got, err)
	}
	if d.Failures() != 2 {
		t.Errorf("%d failures counted, want 2", d.Failures())
	}
}

func TestOneBrokenEventKeepsTheFastPath(t *testing.T) {
	d := podDecoder()
	for range 5 {
		if _, err := objectNames(d, strings.NewReader(threeEvents+"{garbage\n")); errors.Is(err, ErrEnd) {
			t.Fatal("garbage was read")
		}
	}
	if d.useStockJSON.Load() {
		t.Error("fell back although objects were read in between")
	}
}

func TestErrorPagesAreNotDecodeErrors(t *testing.T) {
	d := podDecoder()
	for range 3 {
		if _, err := objectNames(d, strings.NewReader("<html>502</html>\n")); errors.Is(err, ErrEnd) {
			t.Fatal("a page was read")
		}
	}
	if d.useStockJSON.Load() || d.Failures() != 0 {
		t.Error("a proxy's error page counted as an event")
	}
}

func TestExtraEnvelopeMembersAreNotPartOfTheObject(t *testing.T) {
	got, err := objectNames(podDecoder(), strings.NewReader(`{"type":"ADDED","object":{"metadata":{"name":"a"}},"extra":{}}`+"\n"))
	if len(got) != 0 || errors.Is(err, ErrEnd) {
		t.Errorf("read %v, %v", got, err)
	}
}

// decodePage reads a whole page.
func decodePage(d *Decoder, page string) (meta metav1.ListMeta, objects []*deltas.Object, err error) {
	meta, err = d.List(strings.NewReader(page), nil, func(o *deltas.Object) error {
		objects = append(objects, o)
		return nil
	})
	return meta, objects, err
}

func TestListItemsGetTheResourceKind(t *testing.T) {
	meta := `"metadata":{"resourceVersion":"42","continue":"c","remainingItemCount":3}`
	items := `"items":[ {"metadata":{"name":"a","managedFields":[]}} , {"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"}} ]`
	for _, page := range []string{ // of built-in types, and of custom resources
		`{"kind":"PodList","apiVersion":"v1",` + meta + `,` + items + `}`, `{"apiVersion":"v1",` + items + `,"kind":"PodList",` + meta + `}`,
	} {
		l, objects, err := decodePage(podDecoder(), page)
		if err != nil {
			t.Fatal(err)
		}
		if l.ResourceVersion != "42" || l.Continue != "c" || *l.RemainingItemCount != 3 || len(objects) != 2 {
			t.Fatalf("%+v with %d objects", l, len(objects))
		}
		for i, want := range []string{
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"}}`,
		} {
			if got := string(objects[i].Raw); got != want {
				t.Errorf("item %d is %s, want %s", i, got, want)
			}
		}
	}
}

func TestEmptyListsAreLists(t *testing.T) {
	for _, items := range []string{`[]`, `[ ]`, `null`} {
		_, objects, err := decodePage(podDecoder(), `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":`+items+`}`)
		if err != nil || len(objects) != 0 {
			t.Errorf("items %s: %d %v", items, len(objects), err)
		}
	}
}

func TestTruncatedPageIsAnError(t *testing.T) {
	whole := `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`
	for end := range len(whole) {
		if _, _, err := decodePage(podDecoder(), whole[:end]); err == nil {
			t.Errorf("%q was accepted as a page", whole[:end])
		}
	}
	for _, page := range []string{`[]`, `"text"`, `{"items":{}}`, `{"items":[1]}`, `{"items":["a"]}`} {
		if _, _, err := decodePage(podDecoder(), page); err == nil {
			t.Errorf("%q was accepted as a page", page)
		}
	}
}

// TestPagesAreReadInAnyChunking: where a response is cut into parts depends on the network.
func TestPagesAreReadInAnyChunking(t *testing.T) {
	long := `{"metadata":{"name":"long"},"data":"` + strings.Repeat("x", 200_000) + `"}`
	page := ` { "kind" : "List", "n": 1, "items" : [ {"metadata":{"name":"a"}} ,` + long + `, {"metadata":{"name":"\u0062"}}],` +
		`"metadata": {"resourceVersion":"42"}, "last": 17 } `
	for name, r := range map[string]io.Reader{
		"whole":        strings.NewReader(page),
		"byte by byte": iotest.OneByteReader(strings.NewReader(page)),
		"in halves":    iotest.HalfReader(strings.NewReader(page)),
		"with the end": iotest.DataErrReader(strings.NewReader(page)),
	} {
		var names []string
		meta, err := podDecoder().List(r, nil, func(o *deltas.Object) error {
			names = append(names, o.Name)
			return nil
		})
		if got := strings.Join(names, ","); got != "a,long,b" || meta.ResourceVersion != "42" || err != nil {
			t.Errorf("%s: %s at %q, %v", name, got, meta.ResourceVersion, err)
		}
	}
}

// TestLostConnectionIsNoMalformedPage: the error of the connection is returned, after the objects before it.
func TestLostConnectionIsNoMalformedPage(t *testing.T) {
	lost, read := errors.New("connection lost"), 0
	page := io.MultiReader(strings.NewReader(`{"items":[{"metadata":{"name":"a"}},{"metadata":{"na`), iotest.ErrReader(lost))
	d := podDecoder()
	_, err := d.List(page, nil, func(*deltas.Object) error { read++; return nil })
	if !errors.Is(err, lost) || read != 1 || d.Failures() != 0 {
		t.Errorf("%d objects, %v, %d failures", read, err, d.Failures())
	}
}

// FuzzPagesEqualEncodingJSON: what encoding/json reads as a list is read alike, wherever its parts are cut.
func FuzzPagesEqualEncodingJSON(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}, {"metadata":{"name":"b"}}]}`), uint8(3))
	f.Add([]byte(`{"items":null,"x":[1,-2.5e3,true,"]"],"metadata":{}}`), uint8(1))
	f.Fuzz(func(t *testing.T, page []byte, part uint8) {
		var want struct {
			Metadata metav1.ListMeta
			Items    []json.RawMessage
		}
		if strictErr := json.Unmarshal(page, &want); strictErr != nil || hasOtherSpelling(page) {
			return
		}
		var names []string
		for _, item := range want.Items {
			o, err := podDecoder().Object(item)
			if err != nil || requireName(o) != nil {
				return
			}
			names = append(names, o.Name)
		}
		var got []string
		meta, err := podDecoder().List(partReader{bytes.NewReader(page), int(part) + 1}, nil, func(o *deltas.Object) error {
			got = append(got, o.Name)
			return nil
		})
		if err != nil || !slices.Equal(got, names) || meta.ResourceVersion != want.Metadata.ResourceVersion {
			t.Errorf("read %q at %q, %v; want %q at %q", got, meta.ResourceVersion, err, names, want.Metadata.ResourceVersion)
		}
	})
}

// hasOtherSpelling reports whether encoding/json would take a member for one of another spelling, or one of several: it
// ignores case, and the last of equal names counts.
func hasOtherSpelling(page []byte) bool {
	seen := map[string]bool{}
	m := rawjson.EnterObject(page, rawjson.SkipSpace(page, 0))
	for m.Next() {
		name := strings.ToLower(string(m.Key))
		if seen[name] || string(m.Key) != name && (name == "items" || name == "metadata") {
			return true
		}
		seen[name] = true
		m.I = rawjson.SkipValue(page, m.I, 1)
	}
	return m.I < 0
}

// partReader reads at most size bytes at a time.
type partReader struct {
	io.Reader
	size int
}

func (r partReader) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), r.size)]) }

func FuzzDecodeNeverPanics(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}},{}]}`))
	f.Add([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`))
	f.Add([]byte(threeEvents))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, d := range []*Decoder{podDecoder(), New(event.Resource{}, true)} {
			_, _ = d.List(bytes.NewReader(b), nil, func(*deltas.Object) error { return nil })
			_, _ = d.decodeEvent(b)
			o, err := d.Object(b)
			if err == nil && requireName(o) == nil && json.Valid(b) && !json.Valid(o.Raw) { // objects without a name are never kept
				t.Errorf("made %q", o.Raw)
			}
		}
	})
}
