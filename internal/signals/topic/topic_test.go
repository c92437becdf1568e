package topic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const (
	name        = "kubecdc.signals"
	testTimeout = 3 * time.Minute
)

// exporter takes signals from a topic of a fake cluster. What it stores outlives it, as in a journal.
type exporter struct {
	t       *testing.T
	cluster *kfake.Cluster
	client  *kgo.Client

	mu       sync.Mutex
	stored   []byte // the book
	failures int    // of the next attempts to store
	inactive bool   // it takes no signals
	taken    []string
	book     *signals.Registry
	reported error
}

func newExporter(t *testing.T, partitions int32) *exporter {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(4<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &exporter{t: t, cluster: cluster, client: client}
}

func (e *exporter) save(_ context.Context, book []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failures > 0 {
		e.failures--
		return errors.New("the state is away")
	}
	e.stored = book
	return nil
}

// Submit implements [signals.Handler] as the exporter does.
func (e *exporter) Submit(ctx context.Context, r signals.Request) (signals.Signal, error) {
	e.mu.Lock()
	inactive := e.inactive
	e.mu.Unlock()
	if inactive {
		return signals.Signal{}, &signals.NotActiveError{Reason: "not yet"}
	}
	return e.book.Execute(ctx, r, func(r signals.Request) (signals.Signal, error) {
		s := r.New(time.Now())
		if r.Invalid != "" {
			s = s.End(signals.Refused, time.Now(), 0, r.Invalid)
		}
		if err := e.book.Commit(ctx, s.ID, func(b *signals.Book) { b.Put(s) }); err != nil {
			return s, err
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.taken = append(e.taken, s.Sink)
		return s, nil
	})
}

// List implements [signals.Handler].
func (e *exporter) List() ([]signals.Signal, error) { return e.book.List(), nil }

func (e *exporter) report(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reported = err
}

// start takes signals on the stored book until the returned function is called.
func (e *exporter) start() (stop func()) {
	e.t.Helper()
	e.mu.Lock()
	stored, err := signals.Decode(e.stored)
	e.mu.Unlock()
	if err != nil {
		e.t.Fatal(err)
	}
	e.book = signals.NewRegistry(e.save)
	e.book.Load(stored)
	r := New(Options{
		Cluster: cluster.Options{Brokers: e.cluster.ListenAddrs(), ClientID: "test", Timeout: 10 * time.Second}, Topic: name,
		Handler: e, Book: e.book, Report: e.report, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Error(err)
		}
	})
	e.t.Cleanup(stop)
	return stop
}

// await waits for a condition, with the lock held.
func (e *exporter) await(what string, met func() bool) {
	e.t.Helper()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for deadline := time.Now().Add(testTimeout); ; <-pause.C {
		e.mu.Lock()
		is, taken, reported := met(), slices.Clone(e.taken), e.reported
		e.mu.Unlock()
		if is {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("%s: taken %v, reported %v", what, taken, reported)
		}
	}
}

// awaitStored waits until the stored book has positions of so many partitions.
func (e *exporter) awaitPositions(n int) {
	e.t.Helper()
	e.await(fmt.Sprint(n, " partitions have a position"), func() bool {
		b, err := signals.Decode(e.stored)
		return err == nil && len(b.Positions) == n
	})
}

// awaitTaken waits until the signals for exactly these sinks were taken, in this order.
func (e *exporter) awaitTaken(sinks ...string) {
	e.t.Helper()
	e.await(fmt.Sprint("signals for ", sinks), func() bool { return slices.Equal(e.taken, sinks) })
}

// write writes a request for a sink, or another text.
func (e *exporter) write(partition int32, texts ...string) {
	e.t.Helper()
	for _, text := range texts {
		if !strings.HasPrefix(text, "{") {
			text = `{"signal":"pause","sink":"` + text + `"}`
		}
		if err := e.client.ProduceSync(e.t.Context(), &kgo.Record{Topic: name, Partition: partition, Value: []byte(text)}).FirstErr(); err != nil {
			e.t.Fatal(err)
		}
	}
}

func TestOldRecordsAreNeverTakenAndLaterOnesOnce(t *testing.T) {
	e := newExporter(t, 2)
	e.write(0, "old")
	e.write(1, "old")
	stop := e.start()
	e.awaitPositions(2)
	stop()
	e.write(0, "a", "b")
	stop = e.start()
	e.awaitTaken("a", "b")
	e.write(1, "c")
	e.awaitTaken("a", "b", "c")
	stop()
	e.write(0, "d")
	stop = e.start()
	e.awaitTaken("a", "b", "c", "d")
	stop()
	stop = e.start()
	e.write(0, "e")
	e.awaitTaken("a", "b", "c", "d", "e")
	stop()
	for i, s := range e.book.List() {
		if s.Record == nil || s.Record.Topic != name || s.ID == "" {
			t.Errorf("signal %d is %+v", i, s)
		}
	}
}

func TestARecordThatCannotBeStoredIsReadAgainUnderItsID(t *testing.T) {
	e := newExporter(t, 1)
	e.start()
	e.awaitPositions(1)
	e.mu.Lock()
	e.failures = 2
	e.mu.Unlock()
	e.write(0, "a", "b")
	e.awaitTaken("a", "b")
	if all := e.book.List(); len(all) != 2 || all[0].State != signals.Active || all[0].ID == all[1].ID {
		t.Errorf("the signals are %+v", all)
	}
	e.mu.Lock()
	e.inactive = true
	e.mu.Unlock()
	e.write(0, "c")
	e.await("the reason", func() bool { return e.reported != nil && strings.Contains(e.reported.Error(), "not yet") })
	e.mu.Lock()
	e.inactive = false
	e.mu.Unlock()
	e.awaitTaken("a", "b", "c")
	e.await("no reason", func() bool { return e.reported == nil })
}

// TestACrashAfterTheStoreTakesNothingTwice starts again with the book as it was with the first of several signals.
func TestACrashAfterTheStoreTakesNothingTwice(t *testing.T) {
	e := newExporter(t, 1)
	stop := e.start()
	e.awaitPositions(1)
	stop()
	batch := []*kgo.Record{}
	for _, sink := range []string{"a", "b", "c"} {
		batch = append(batch, &kgo.Record{Topic: name, Value: []byte(`{"signal":"pause","sink":"` + sink + `"}`)})
	}
	if err := e.client.ProduceSync(t.Context(), batch...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	first, err := signals.Decode(e.stored)
	if err != nil {
		t.Fatal(err)
	}
	stop = e.start()
	e.awaitTaken("a", "b", "c")
	stop()
	taken := e.book.List()
	crashed := signals.NewRegistry(e.save) // with the first signal, and nothing behind that
	crashed.Load(first)
	if err := crashed.Commit(t.Context(), "", func(b *signals.Book) { b.Put(taken[0]) }); err != nil {
		t.Fatal(err)
	}
	e.taken = nil
	e.start()
	e.awaitTaken("b", "c")
	for i, s := range e.book.List() {
		if s.ID != taken[i].ID {
			t.Errorf("signal %d has the ID %s, and before %s", i, s.ID, taken[i].ID)
		}
	}
}

func TestAMalformedRecordIsRefusedAndNothingStops(t *testing.T) {
	e := newExporter(t, 1)
	e.start()
	e.awaitPositions(1)
	e.write(0, "{", `{"signal":7}`, `{"signal":"pause","for":"soon"}`, `{} {}`, "{"+strings.Repeat(" ", 1<<20), "a")
	if err := e.client.ProduceSync(t.Context(), &kgo.Record{Topic: name, Key: []byte("deleted")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	e.write(0, "b")
	e.awaitTaken("", "", "", "", "", "a", "", "b")
	for i, s := range e.book.List() {
		if isRequest := i == 5 || i == 7; isRequest != (s.State == signals.Active) || !isRequest && !strings.HasPrefix(s.Result, "the record ") {
			t.Errorf("signal %d is %s: %s", i, s.State, s.Result)
		}
	}
}

func TestAGivenIDIsKeptAndTakenOnce(t *testing.T) {
	e := newExporter(t, 1)
	e.start()
	e.awaitPositions(1)
	id := signals.NewID()
	again := `{"signal":"pause","sink":"a","id":"` + id + `"}`
	e.write(0, again, again, "b")
	e.awaitTaken("a", "b")
	if all := e.book.List(); len(all) != 2 || all[0].ID != id || all[0].Record.Offset != 0 || all[1].Record.Offset != 2 {
		t.Errorf("the signals are %+v", all)
	}
}

// TestATopicThatIsMissingOrRecreatedIsReported: what a recreated topic has when that is noticed is not taken.
func TestATopicThatIsMissingOrRecreatedIsReported(t *testing.T) {
	e := newExporter(t, 2)
	stop := e.start()
	e.awaitPositions(2)
	e.write(0, "a", "b")
	e.awaitTaken("a", "b")
	request := kmsg.NewPtrDeleteTopicsRequest()
	of := kmsg.NewDeleteTopicsRequestTopic()
	of.Topic = kmsg.StringPtr(name)
	request.Topics, request.TopicNames, request.TimeoutMillis = []kmsg.DeleteTopicsRequestTopic{of}, []string{name}, 10_000
	if _, err := request.RequestWith(t.Context(), e.client); err != nil {
		t.Fatal(err)
	}
	e.await("the topic is missing", func() bool { return e.reported != nil && strings.Contains(e.reported.Error(), "does not exist") })
	stop()
	if err := e.book.SaveUnsaved(t.Context()); err != nil { // as an exporter does every second
		t.Fatal(err)
	}
	e.client.PurgeTopicsFromClient(name) // which rejects another topic ID otherwise
	created := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = name, 1, 1
	created.Topics = []kmsg.CreateTopicsRequestTopic{one}
	if _, err := created.RequestWith(t.Context(), e.client); err != nil {
		t.Fatal(err)
	}
	e.write(0, "x", "y", "z")
	e.start()
	e.await("the new end", func() bool {
		b, err := signals.Decode(e.stored)
		return err == nil && len(b.Positions) == 1 && strings.HasPrefix(b.Positions[signals.Place(name, 0)], "3 ") && e.reported == nil
	})
	e.write(0, "c")
	e.awaitTaken("a", "b", "c")
}

func TestPositionsOfAnotherTopicAreDropped(t *testing.T) {
	e := newExporter(t, 1)
	former := signals.NewRegistry(e.save)
	if err := former.Commit(t.Context(), "", func(b *signals.Book) { b.SetPosition("another/0", "7"); b.SetPosition("another/1", "7") }); err != nil {
		t.Fatal(err)
	}
	e.write(0, "old")
	e.start()
	e.awaitPositions(1)
	e.write(0, "a")
	e.awaitTaken("a")
	DropPositions(e.book)
	if places := e.book.Places(); len(places) > 0 {
		t.Errorf("kept are %v", places)
	}
}
