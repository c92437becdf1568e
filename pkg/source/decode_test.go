package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// podDecoder is of a resource whose objects are Pods.
func podDecoder() *decoder {
	return newDecoder(selection.Scope{Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}})
}

// names reads a stream to its end, and how it ended.
func names(d *decoder, stream io.Reader) (got []string, err error) {
	c := connect(io.NopCloser(stream), func() {}, d)
	defer c.stop()
	for b := range c.batches {
		for _, e := range b.events {
			got = append(got, string(e.Type)+" "+e.Object.Name)
		}
	}
	return got, c.err
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
		got, err := names(podDecoder(), r)
		if want := "ADDED a,MODIFIED b,DELETED c,ADDED long"; strings.Join(got, ",") != want || !errors.Is(err, errStreamEnd) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestAStreamCutInsideAnEventEndsWithoutIt(t *testing.T) {
	got, err := names(podDecoder(), strings.NewReader(threeEvents[:len(threeEvents)-5]))
	if strings.Join(got, ",") != "ADDED a,MODIFIED b" || !errors.Is(err, errStreamEnd) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAReadErrorIsPassedOn(t *testing.T) {
	broken := errors.New("broken")
	got, err := names(podDecoder(), io.MultiReader(strings.NewReader(threeEvents), iotest.ErrReader(broken)))
	if len(got) != 3 || !errors.Is(err, broken) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestABatchIsWhatHasArrived(t *testing.T) {
	var stream strings.Builder
	for i := range 3 * maxBatchEvents {
		fmt.Fprintf(&stream, `{"type":"ADDED","object":{"metadata":{"name":"n%d","resourceVersion":"%d"}}}`+"\n", i, i+1)
	}
	c := connect(io.NopCloser(strings.NewReader(stream.String())), func() {}, podDecoder())
	defer c.stop()
	total, batches := 0, 0
	for b := range c.batches {
		batches++
		if total += len(b.events); b.position != fmt.Sprint(total) || len(b.events) > maxBatchEvents {
			t.Errorf("a batch of %d ends at %s after %d events", len(b.events), b.position, total)
		}
	}
	if total != 3*maxBatchEvents || batches > 3*maxBatchEvents/10 {
		t.Errorf("%d events in %d batches", total, batches)
	}
}

func TestABatchIsBoundedInBytes(t *testing.T) {
	line := `{"type":"ADDED","object":{"metadata":{"name":"a"},"data":"` + strings.Repeat("x", maxBatchBytes) + `"}}` + "\n"
	c := connect(io.NopCloser(strings.NewReader(line+line+line)), func() {}, podDecoder())
	defer c.stop()
	for b := range c.batches {
		if len(b.events) != 1 {
			t.Errorf("%d large events in one batch", len(b.events))
		}
	}
}

func TestABatchEndsWithTheInitialEvents(t *testing.T) {
	mark := `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
	c := connect(io.NopCloser(strings.NewReader(threeEvents+mark+threeEvents)), func() {}, podDecoder())
	defer c.stop()
	first, second := <-c.batches, 0
	if !first.listed || first.position != "7" || len(first.events) != 3 || first.read != 4 {
		t.Errorf("%+v", first)
	}
	for b := range c.batches {
		second += len(b.events)
	}
	if second != 3 {
		t.Errorf("%d events behind the mark, want 3", second)
	}
}

func TestAConnectionThatIsStoppedHoldsNothing(t *testing.T) {
	r, w := io.Pipe()
	c := connect(r, func() { r.Close() }, podDecoder())
	go func() { _, _ = io.WriteString(w, threeEvents) }()
	<-c.batches
	c.stop() // goleak finds what stays
}

func TestAnotherSpellingOfTheStreamIsReadByTheStockFramer(t *testing.T) {
	indented := strings.ReplaceAll(threeEvents, `,"object":`, ",\n  \"object\": ")
	d := podDecoder()
	for range 2 {
		if got, err := names(d, strings.NewReader(indented)); len(got) != 0 || errors.Is(err, errStreamEnd) {
			t.Fatalf("line framing read %v, %v", got, err)
		}
	}
	got, err := names(d, strings.NewReader(indented))
	if strings.Join(got, ",") != "ADDED a,MODIFIED b,DELETED c" || !errors.Is(err, errStreamEnd) {
		t.Errorf("stock framing read %v, %v", got, err)
	}
	if d.failed.Load() != 2 {
		t.Errorf("%d failures counted, want 2", d.failed.Load())
	}
}

func TestOneBrokenEventDoesNotCostTheFastPath(t *testing.T) {
	d := podDecoder()
	for range 5 {
		if _, err := names(d, strings.NewReader(threeEvents+"{garbage\n")); errors.Is(err, errStreamEnd) {
			t.Fatal("garbage was read")
		}
	}
	if d.stock.Load() {
		t.Error("fell back although objects were read in between")
	}
}

func TestErrorPagesAreNoDecodeErrors(t *testing.T) {
	d := podDecoder()
	for range 3 {
		if _, err := names(d, strings.NewReader("<html>502</html>\n")); errors.Is(err, errStreamEnd) {
			t.Fatal("a page was read")
		}
	}
	if d.stock.Load() || d.failed.Load() != 0 {
		t.Error("a proxy's error page was taken for an event")
	}
}

func TestMoreMembersOfAnEnvelopeAreNotTakenForTheObject(t *testing.T) {
	got, err := names(podDecoder(), strings.NewReader(`{"type":"ADDED","object":{"metadata":{"name":"a"}},"extra":{}}`+"\n"))
	if len(got) != 0 || errors.Is(err, errStreamEnd) {
		t.Errorf("read %v, %v", got, err)
	}
}

func TestErrorEventsKeepTheirMeaning(t *testing.T) {
	_, err := names(podDecoder(), strings.NewReader(
		`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}`+"\n"))
	if classifyError(err) != expired {
		t.Fatalf("%v", err)
	}
}

// pageOf reads a page whole.
func pageOf(d *decoder, page string) (meta metav1.ListMeta, objects []*deltas.Object, err error) {
	meta, err = d.page(strings.NewReader(page), func(o *deltas.Object) error {
		objects = append(objects, o)
		return nil
	})
	return meta, objects, err
}

func TestListItemsGetTheKindOfTheResource(t *testing.T) {
	meta := `"metadata":{"resourceVersion":"42","continue":"c","remainingItemCount":3}`
	items := `"items":[ {"metadata":{"name":"a","managedFields":[]}} , {"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"}}, {} ]`
	for _, page := range []string{ // built-in types, and custom resources
		`{"kind":"PodList","apiVersion":"v1",` + meta + `,` + items + `}`, `{"apiVersion":"v1",` + items + `,"kind":"PodList",` + meta + `}`,
	} {
		l, objects, err := pageOf(podDecoder(), page)
		if err != nil {
			t.Fatal(err)
		}
		if l.ResourceVersion != "42" || l.Continue != "c" || *l.RemainingItemCount != 3 || len(objects) != 3 {
			t.Fatalf("%+v with %d objects", l, len(objects))
		}
		for i, want := range []string{
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"}}`, `{"kind":"Pod","apiVersion":"v1"}`,
		} {
			if got := string(objects[i].Raw); got != want {
				t.Errorf("item %d is %s, want %s", i, got, want)
			}
		}
	}
}

func TestEmptyListsAreLists(t *testing.T) {
	for _, items := range []string{`[]`, `[ ]`, `null`} {
		_, objects, err := pageOf(podDecoder(), `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":`+items+`}`)
		if err != nil || len(objects) != 0 {
			t.Errorf("items %s: %d %v", items, len(objects), err)
		}
	}
}

func TestAPageThatBreaksOffIsAnError(t *testing.T) {
	whole := `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`
	for end := range len(whole) {
		if _, _, err := pageOf(podDecoder(), whole[:end]); err == nil {
			t.Errorf("%q was taken for a page", whole[:end])
		}
	}
	for _, page := range []string{`[]`, `"text"`, `{"items":{}}`, `{"items":[1]}`, `{"items":["a"]}`} {
		if _, _, err := pageOf(podDecoder(), page); err == nil {
			t.Errorf("%q was taken for a page", page)
		}
	}
}

func FuzzDecodeNeverPanics(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}},{}]}`))
	f.Add([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure"}`))
	f.Add([]byte(threeEvents))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, d := range []*decoder{podDecoder(), newDecoder(selection.Scope{MetadataOnly: true})} {
			_, _ = d.page(bytes.NewReader(b), func(*deltas.Object) error { return nil })
			_, _ = d.frame(b)
			if o, err := d.object(b); err == nil && json.Valid(b) && !json.Valid(o.Raw) {
				t.Errorf("made %q", o.Raw)
			}
		}
	})
}

func BenchmarkWatchEvents(b *testing.B) {
	line := append(append([]byte(`{"type":"MODIFIED","object":`), podJSON(6)...), '}', '\n')
	stream := bytes.Repeat(line, 64)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for done := 0; done < b.N; {
		c := connect(io.NopCloser(bytes.NewReader(stream)), func() {}, podDecoder())
		for batch := range c.batches {
			done += len(batch.events)
		}
		c.stop()
	}
}
