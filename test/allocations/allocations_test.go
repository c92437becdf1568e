//go:build !race

package allocations

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
)

const (
	changes = 20_000
	objects = 1_000
	batch   = 100 // events in a batch of a watch under load

	// Bounds for one change, a tenth above what it takes: the object, its strings, its known state, the change and its actor,
	// a place in the batch, the window and the store, and eight by client-go's DeltaFIFO. The bytes have half as much again:
	// each collection empties the pools of buffers, and their number depends on what else the machine does.
	maxAllocations = 24
	maxBytes       = 4_500
)

var resource = event.Resource{Version: "v1", Resource: "events", Kind: "Event"}

// TestAChangeAllocatesLittle runs watch events through the parts that each change passes, and counts. There is no such test
// with the race detector: Pebble then checks some of its iterators, drawn at random, which takes five allocations a change.
func TestAChangeAllocatesLittle(t *testing.T) {
	stream := decode.New(resource, false).Stream(bytes.NewReader(watchFrames()))
	p := startPipeline(t)
	feed := func(n int) {
		events := make([]deltas.Event, 0, batch)
		for range n / batch {
			events = events[:0]
			for range batch {
				e, _, err := stream.Next()
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, e)
			}
			p.emit(t, events)
		}
	}
	feed(changes / 2) // until buffers have their size
	p.awaitDelivered(t, changes/2)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	feed(changes / 2)
	p.awaitDelivered(t, changes)
	runtime.ReadMemStats(&after)
	count := float64(after.Mallocs-before.Mallocs) / (changes / 2)
	size := float64(after.TotalAlloc-before.TotalAlloc) / (changes / 2)
	t.Logf("%.1f allocations and %.0f bytes a change", count, size)
	if count > maxAllocations || size > maxBytes {
		t.Errorf("%.1f allocations and %.0f bytes a change, at most %d and %d", count, size, maxAllocations, maxBytes)
	}
}

// watchFrames returns events of a watch: objects of 1.1 KB, first as added, then as modified.
func watchFrames() []byte {
	var b bytes.Buffer
	for i := range changes {
		typ := "MODIFIED"
		if i < objects {
			typ = "ADDED"
		}
		fmt.Fprintf(&b, `{"type":%q,"object":{"kind":"Event","apiVersion":"v1","metadata":{"name":"web-%d.17a2","namespace":"shop",`+
			`"uid":"8a5e1c3f-93a1-4d6b-a0f2-%012x","resourceVersion":"%d","creationTimestamp":"2026-03-02T08:00:00Z","managedFields":[`+
			`{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-03-02T08:%02d:%02dZ","fieldsType":"FieldsV1",`+
			`"fieldsV1":{"f:count":{},"f:firstTimestamp":{},"f:involvedObject":{},"f:lastTimestamp":{},"f:message":{},"f:reason":{}}}]},`+
			`"involvedObject":{"kind":"Pod","namespace":"shop","name":"web-%d","uid":"u-%d","apiVersion":"v1","fieldPath":"spec.containers{app}"},`+
			`"reason":"BackOff","message":"Back-off restarting failed container app in pod web-%d","source":{"component":"kubelet","host":"node-7"},`+
			`"firstTimestamp":"2026-03-02T08:00:00Z","lastTimestamp":"2026-03-02T08:20:00Z","count":%d,"type":"Warning","eventTime":null,`+
			`"reportingComponent":"kubelet","reportingInstance":"node-7"}}`+"\n",
			typ, i%objects, i%objects, 1_000_000+i, i/60%60, i%60, i%objects, i%objects, i%objects, i)
	}
	return b.Bytes()
}

// pipeline is a scope, a journal, and a delivery to a sink that drops what it encodes.
type pipeline struct {
	tracker *deltas.Tracker
	append  event.AppendFunc
	arrived chan int // messages of each Publish
	count   int
}

func startPipeline(t *testing.T) *pipeline {
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Declaration: journal.Declaration{Sinks: []string{"null"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	running := make(chan error, 2)
	go func() { running <- j.Run(ctx) }()
	p := &pipeline{
		tracker: deltas.NewTracker(deltas.Scope{ID: "events", Cluster: "east", Resource: resource}, deltas.NewKnownSet(), nil, time.Now),
		arrived: make(chan int, changes),
	}
	deliver := delivery.New("null", &null{arrived: p.arrived}, "", ledger{j}, event.Cursor{}, delivery.Config{}, slog.New(slog.DiscardHandler))
	go func() { running <- deliver.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		for range cap(running) {
			if err := <-running; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	shaper, err := shape.New([]shape.Policy{{}}, shape.Options{JournalSecret: []byte("secret of the journal"), Bodies: j})
	if err != nil {
		t.Fatal(err)
	}
	p.append = shaper.WrapAppend(0, j.Append)
	return p
}

func (p *pipeline) emit(t *testing.T, events []deltas.Event) {
	o, err := p.tracker.ObserveEvents(events, events[len(events)-1].Object.ResourceVersion)
	if err == nil {
		err = p.append(t.Context(), o)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *pipeline) awaitDelivered(t *testing.T, want int) {
	for p.count < want {
		select {
		case n := <-p.arrived:
			p.count += n
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d changes arrived", p.count, want)
		}
	}
}

// ledger is the journal as one sink sees it.
type ledger struct{ *journal.Journal }

func (l ledger) Settle(ctx context.Context, to event.Cursor, letters []event.DeadLetter) error {
	return l.Journal.Settle(ctx, "null", to, letters)
}

// null encodes what it gets and drops it. One lane calls it.
type null struct {
	arrived chan int
	value   []byte
}

func (n *null) Lane(*event.Change) (sinks.Lane, error) { return "null", nil }

func (n *null) Publish(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	for _, m := range batch {
		n.value = format.AppendJSON(n.value[:0], m.Change)
	}
	n.arrived <- len(batch)
	return len(batch), nil
}

func (n *null) Close(context.Context) error { return nil }
