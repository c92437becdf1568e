package deltas

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func config(a Append) QueueConfig {
	return QueueConfig{
		Scope: Scope{ID: "s", Cluster: "c", Resource: event.Resource{Resource: "pods"}}, Append: a, Now: time.Now,
		Origin: func() Origin { return Origin{Kind: First} }, SnapshotID: func() string { return "S" },
	}
}

func pod(name, rv string) *Object {
	o := NewObject("ns", name)
	o.UID, o.ResourceVersion = name, rv
	return o
}

func TestRunEndsWithItsContext(t *testing.T) {
	q := NewQueue(config(func(context.Context, Observation) error { return nil }))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- q.Run(ctx) }()
	if err := q.Add(pod("a", "1")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("Run ended with %v", err)
	}
	if err := q.Replace(nil, "5"); err == nil {
		t.Fatal("Replace waits for a queue that nobody pops any more")
	}
}

func TestFailureToAppendStopsTheQueue(t *testing.T) {
	full := errors.New("journal closed")
	q := NewQueue(config(func(context.Context, Observation) error { return full }))
	if err := q.Add(pod("a", "1")); err != nil {
		t.Fatal(err)
	}
	if err := q.Run(context.Background()); !errors.Is(err, full) {
		t.Fatalf("Run ended with %v, want %v", err, full)
	}
}

func TestReflectorSideNeverPassesABlockedAppend(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var positions []string
	q := NewQueue(config(func(_ context.Context, o Observation) error {
		if len(o.Changes) > 0 {
			close(entered)
			<-release
		}
		positions = append(positions, o.Position)
		return nil
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done, marked := make(chan error), make(chan error)
	if err := q.Add(pod("a", "7")); err != nil {
		t.Fatal(err)
	}
	go func() { done <- q.Run(ctx) }()
	<-entered
	go func() { marked <- q.Bookmark("9") }()
	close(release)
	if err := <-marked; err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(positions) != 2 || positions[0] != "7" || positions[1] != "9" { // I1
		t.Fatalf("positions appended: %v, want 7 then 9", positions)
	}
}

func TestWhatAListRepeatsIsNotQueued(t *testing.T) {
	c := config(func(context.Context, Observation) error { return nil })
	c.Origin = func() Origin { return Origin{Kind: Relisted, From: "3"} }
	c.Stored.Position = "3"
	for _, o := range []*Object{pod("same", "1"), pod("changed", "2"), pod("gone", "3")} {
		c.Stored.Known = append(c.Stored.Known, o.known())
	}
	q := NewQueue(c)
	if err := q.Replace([]any{pod("same", "1"), pod("changed", "4"), pod("new", "5")}, "5"); err != nil {
		t.Fatal(err)
	}
	var queued []string
	for !q.fifo.HasSynced() { // until the whole list is popped
		if _, err := q.fifo.Pop(func(obj any, _ bool) error {
			key, err := q.fifo.KeyOf(obj)
			queued = append(queued, key)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(queued)
	if want := []string{"ns/changed", "ns/gone", "ns/new"}; !slices.Equal(queued, want) {
		t.Errorf("queued %q, want %q", queued, want)
	}
}

func BenchmarkQueue(b *testing.B) {
	q := NewQueue(config(func(context.Context, Observation) error { return nil }))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- q.Run(ctx) }()
	b.ReportAllocs()
	for i := range b.N {
		o := pod("a", "")
		o.ResourceVersion = strconv.Itoa(1_000_000_000 + i)
		if err := q.Update(o); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
