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
	server := serve(b, "")
	s := opened(b, configFor(server.URL()), quiet)
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
				lane := s.lanes.name(uint64(i))
				n := b.N/concurrency + 1
				lanes.Go(func() {
					batch := make([]sinks.Message, 0, n)
					for version := range n {
						c := pod(fmt.Sprintf("%d-%d-%d", run, b.N, i), version)
						c.After = body
						batch = append(batch, sinks.Message{Change: c})
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
	server := serve(b, "")
	s := opened(b, configFor(server.URL()), quiet)
	if err := s.Ping(b.Context()); err != nil {
		b.Fatal(err)
	}
	body := append(append([]byte(`"`), bytes.Repeat([]byte("x"), 4000)...), '"')
	messages := make([]sinks.Message, 0, b.N)
	for i := range b.N {
		c := pod(fmt.Sprint("web-", i%4096), i)
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
