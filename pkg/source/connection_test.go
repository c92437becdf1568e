package source

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

// podDecoder is of a resource whose objects are Pods.
func podDecoder() *decode.Decoder {
	return decode.New(event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, false)
}

const threeEvents = `{"type":"ADDED","object":{"metadata":{"name":"a"}}}
{"type":"MODIFIED","object":{"metadata":{"name":"b"}}}

{"type":"DELETED","object":{"metadata":{"name":"c"}}}
`

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

func TestErrorEventsKeepTheirMeaning(t *testing.T) {
	_, _, err := podDecoder().Stream(strings.NewReader(
		`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410}}` + "\n")).Next()
	if classifyError(err) != expired {
		t.Fatalf("%v", err)
	}
}
