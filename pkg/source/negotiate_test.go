package source

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

// events decodes a stream as client-go's REST client does.
func events(w *wire, stream io.Reader) *restwatch.Decoder {
	info := w.SupportedMediaTypes()[0]
	frames := info.StreamSerializer.NewFrameReader(io.NopCloser(stream))
	return restwatch.NewDecoder(streaming.NewDecoder(frames, info.StreamSerializer.Serializer), info.Serializer)
}

func names(t *testing.T, w *wire, stream io.Reader) ([]string, error) {
	t.Helper()
	d := events(w, stream)
	defer d.Close()
	var got []string
	for {
		kind, obj, err := d.Decode()
		if err != nil {
			return got, err
		}
		o, ok := obj.(*deltas.Object)
		if !ok {
			t.Fatalf("event carries %T", obj)
		}
		got = append(got, string(kind)+" "+o.Name)
	}
}

const threeEvents = `{"type":"ADDED","object":{"metadata":{"name":"a"}}}
{"type":"MODIFIED","object":{"metadata":{"name":"b"}}}

{"type":"DELETED","object":{"metadata":{"name":"c"}}}
`

func TestEventsAreReadHoweverTheyArrive(t *testing.T) {
	long := `{"type":"ADDED","object":{"metadata":{"name":"long"},"data":"` + strings.Repeat("x", 200_000) + `"}}` + "\n"
	for name, r := range map[string]io.Reader{
		"whole":        strings.NewReader(threeEvents + long),
		"byte by byte": iotest.OneByteReader(strings.NewReader(threeEvents + long)),
		"in halves":    iotest.HalfReader(strings.NewReader(threeEvents + long)),
		"with the end": iotest.DataErrReader(strings.NewReader(threeEvents + long)),
	} {
		got, err := names(t, &wire{}, r)
		if want := "ADDED a,MODIFIED b,DELETED c,ADDED long"; strings.Join(got, ",") != want || !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestAStreamCutInsideAnEventEndsWithoutIt(t *testing.T) {
	got, err := names(t, &wire{}, strings.NewReader(threeEvents[:len(threeEvents)-5]))
	if strings.Join(got, ",") != "ADDED a,MODIFIED b" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAReadErrorIsPassedOn(t *testing.T) {
	broken := errors.New("broken")
	got, err := names(t, &wire{}, io.MultiReader(strings.NewReader(threeEvents), iotest.ErrReader(broken)))
	if len(got) != 3 || !errors.Is(err, broken) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestLinesComeWholeInBuffersOfAnySize(t *testing.T) {
	lines := []string{"a\n", strings.Repeat("b", 100) + "\n", "c\n"}
	for size := 1; size < 120; size++ {
		r := lineFramer{}.NewFrameReader(io.NopCloser(strings.NewReader("\n" + strings.Join(lines, "\n\n"))))
		for _, want := range lines {
			var got []byte
			for {
				p := make([]byte, size)
				n, err := r.Read(p)
				got = append(got, p[:n]...)
				if errors.Is(err, io.ErrShortBuffer) && n == size {
					continue
				}
				if err != nil {
					t.Fatalf("size %d: %v after %q", size, err, got)
				}
				break
			}
			if string(got) != want {
				t.Fatalf("size %d: %q, want %q", size, got, want)
			}
		}
		if n, err := r.Read(make([]byte, size)); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("size %d: %d, %v at the end", size, n, err)
		}
	}
}

func TestAnotherSpellingOfTheStreamIsReadByTheStockFramer(t *testing.T) {
	indented := strings.ReplaceAll(threeEvents, `,"object":`, ",\n  \"object\": ")
	w := &wire{}
	for range 2 {
		if got, err := names(t, w, strings.NewReader(indented)); len(got) != 0 || err == nil {
			t.Fatalf("line framing read %v, %v", got, err)
		}
	}
	got, err := names(t, w, strings.NewReader(indented))
	if strings.Join(got, ",") != "ADDED a,MODIFIED b,DELETED c" || !errors.Is(err, io.EOF) {
		t.Errorf("stock framing read %v, %v", got, err)
	}
	if w.failed.Load() != 2 {
		t.Errorf("%d failures counted, want 2", w.failed.Load())
	}
}

func TestOneBrokenEventDoesNotCostTheFastPath(t *testing.T) {
	w := &wire{}
	for range 5 {
		if _, err := names(t, w, strings.NewReader(threeEvents+"garbage\n")); err == nil {
			t.Fatal("garbage was read")
		}
	}
	if w.stock.Load() {
		t.Error("fell back although objects were read in between")
	}
}

func TestErrorPagesAreNoDecodeErrors(t *testing.T) {
	w := &wire{}
	for range 3 {
		if _, err := runtime.Decode(objectCodec{w}, []byte("<html>502</html>")); err == nil {
			t.Fatal("a page was read")
		}
	}
	if w.stock.Load() || w.failed.Load() != 0 {
		t.Error("a proxy's error page was taken for an event")
	}
}

func TestMoreMembersOfAnEnvelopeAreNotTakenForTheObject(t *testing.T) {
	w := &wire{}
	got, err := names(t, w, strings.NewReader(`{"type":"ADDED","object":{"metadata":{"name":"a"}},"extra":{}}`+"\n"))
	if len(got) != 0 || err == nil {
		t.Errorf("read %v, %v", got, err)
	}
}

func TestErrorsAreStatuses(t *testing.T) {
	d := events(&wire{}, strings.NewReader(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}`+"\n"))
	defer d.Close()
	kind, obj, err := d.Decode()
	status, ok := obj.(*metav1.Status)
	if err != nil || kind != "ERROR" || !ok || status.Reason != metav1.StatusReasonExpired || status.Code != 410 {
		t.Fatalf("%s %+v, %v", kind, obj, err)
	}
}

func TestListItemsGetTheKindOfTheList(t *testing.T) {
	obj, err := runtime.Decode(objectCodec{&wire{}}, []byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42","continue":"c","remainingItemCount":3},"items":[
		{"metadata":{"name":"a","managedFields":[]}} , {"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"}}, {} ]}`))
	if err != nil {
		t.Fatal(err)
	}
	l := obj.(*list)
	if l.ResourceVersion != "42" || l.Continue != "c" || *l.RemainingItemCount != 3 || len(l.Items) != 3 {
		t.Fatalf("%+v", l)
	}
	for i, want := range []string{`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"}}`, `{"kind":"Pod","apiVersion":"v1"}`} {
		if got := string(l.Items[i].Raw); got != want {
			t.Errorf("item %d is %s, want %s", i, got, want)
		}
	}
}

func TestEmptyListsAreLists(t *testing.T) {
	for _, items := range []string{`[]`, `[ ]`, `null`} {
		obj, err := runtime.Decode(objectCodec{&wire{}}, []byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":`+items+`}`))
		if l, ok := obj.(*list); err != nil || !ok || len(l.Items) != 0 {
			t.Errorf("items %s: %T %v", items, obj, err)
		}
	}
}

func FuzzDecodeNeverPanics(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}},{}]}`))
	f.Add([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`))
	f.Add([]byte(threeEvents))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = (&wire{}).decode(b)
		var event metav1.WatchEvent
		if openEnvelope(b, &event) {
			_, _ = (&wire{}).decode(event.Object.Raw)
		}
	})
}

func BenchmarkWatchEvents(b *testing.B) {
	line := append(append([]byte(`{"type":"MODIFIED","object":`), podJSON(6)...), '}', '\n')
	stream := bytes.Repeat(line, 64)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for done := 0; done < b.N; {
		d := events(&wire{}, bytes.NewReader(stream))
		for {
			if _, _, err := d.Decode(); err != nil {
				break
			}
			done++
		}
		d.Close()
	}
}
