package nats

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// BenchmarkPublish measures changes of 4 KB to a file-backed stream of a server of its own, by the number of concurrent
// Publish calls.
func BenchmarkPublish(b *testing.B) {
	server := startServer(b, "")
	s := openSink(b, testConfig(server.URL()), discardLog)
	if err := s.Ping(b.Context()); err != nil {
		b.Fatal(err)
	}
	body := append(append([]byte(`"`), bytes.Repeat([]byte("x"), 4000)...), '"')
	run := 0
	for _, concurrency := range []int{8, 64, 256, 512} {
		b.Run(fmt.Sprint("concurrency=", concurrency), func(b *testing.B) {
			run++
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			var lanes sync.WaitGroup
			for i := range concurrency {
				lane := s.splitLane(uint64(i))
				n := b.N/concurrency + 1
				lanes.Go(func() {
					batch := make([]sinks.Message, 0, n)
					for version := range n {
						c := newPod(fmt.Sprintf("%d-%d-%d", run, b.N, i), version)
						c.After = body
						batch = append(batch, sinks.Message{Offset: offsets.Add(1), Change: c})
					}
					if _, err := s.Publish(b.Context(), lane, batch); err != nil {
						b.Error(err)
					}
				})
			}
			lanes.Wait()
		})
	}
}

// BenchmarkBatches measures changes of 4 KB in batches, to a stream that has no other writer. One operation is one change.
func BenchmarkBatches(b *testing.B) {
	server := startServer(b, "")
	s := openSink(b, testConfig(server.URL()), discardLog)
	if err := s.Ping(b.Context()); err != nil {
		b.Fatal(err)
	}
	body := append(append([]byte(`"`), bytes.Repeat([]byte("x"), 4000)...), '"')
	messages := make([]sinks.Message, 0, b.N)
	for i := range b.N {
		c := newPod(fmt.Sprint("web-", i%4096), i)
		c.After = body
		messages = append(messages, sinks.Message{Offset: uint64(i + 1), Change: c})
	}
	lane, err := s.Lane(messages[0].Change)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	b.ResetTimer()
	for batch := range slices.Chunk(messages, 2000) {
		if _, err := s.Publish(b.Context(), lane, batch); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkColdState measures how long a new process takes to read a state of a million objects, in segments of a busy
// exporter. One operation reads the whole state.
func BenchmarkColdState(b *testing.B) {
	const objects, each = 1_000_000, 400
	server := startServer(b, "")
	cfg := testConfig(server.URL())
	writer := openSink(b, cfg, discardLog)
	store, err := writer.OpenState("STATE")
	if err != nil {
		b.Fatal(err)
	}
	if err := store.Claim(b.Context(), sinks.Claim{Group: "group", Owner: "bench"}); err != nil {
		b.Fatal(err)
	}
	for i := range objects / each {
		entries := make([]sinks.StateEntry, each)
		for j := range entries {
			n := i*each + j
			entries[j] = sinks.StateEntry{Key: fmt.Appendf(nil, "pods/namespace-%d/web-%d", n%997, n), Value: fmt.Appendf(nil, "%036x %d", n*7919, n)}
		}
		if err := store.Append(b.Context(), entries, false); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		s := newSink(b, cfg, discardLog)
		store, err := s.OpenState("STATE")
		if err != nil {
			b.Fatal(err)
		}
		known := map[string]string{}
		if _, err := store.Read(b.Context(), func(e sinks.StateEntry) error { known[string(e.Key)] = string(e.Value); return nil }); err != nil {
			b.Fatal(err)
		}
		if len(known) != objects {
			b.Fatalf("%d objects", len(known))
		}
		if err := s.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
