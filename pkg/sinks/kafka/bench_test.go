package kafka

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// realisticMessages returns n changes with bodies of about 4 KB that resemble Pods.
func realisticMessages(n int) []sinks.Message {
	source := rand.New(rand.NewPCG(1, 2))
	ms := pods("web-7d4b9c6f5d-x2x7p", 1, n+1)
	for i := range ms {
		var containers []any
		for c := range 6 {
			containers = append(containers, map[string]any{
				"name": fmt.Sprintf("container-%d-%d", i, c), "image": fmt.Sprintf("registry.example.com/team/app-%d:v1.%d", c, i),
				"resources":    map[string]any{"limits": map[string]string{"cpu": fmt.Sprint(100 + i%7), "memory": "256Mi"}},
				"volumeMounts": []any{map[string]any{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access-" + randomTextFrom(source, 5), "readOnly": true}},
				"env": []any{map[string]any{"name": "POD_NAME", "valueFrom": map[string]any{"fieldRef": map[string]string{"apiVersion": "v1", "fieldPath": "metadata.name"}}},
					map[string]any{"name": "TOKEN", "value": randomTextFrom(source, 40+i%20)}},
				"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent",
			})
		}
		body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": map[string]any{"containers": containers}})
		if err != nil {
			panic(err)
		}
		ms[i].Change.After = body
	}
	return ms
}

func BenchmarkEncode(b *testing.B) {
	for _, name := range []string{"none", "zstd", "lz4", "snappy", "gzip"} {
		b.Run(name, func(b *testing.B) { benchmarkEncode(b, format.JSON, name) })
	}
}

func BenchmarkEncodeFormat(b *testing.B) {
	for _, f := range []format.Format{format.JSON, format.CloudEvents, format.CloudEventsStructured} {
		for _, name := range []string{"none", "zstd"} {
			b.Run(f.String()+"/"+name, func(b *testing.B) { benchmarkEncode(b, f, name) })
		}
	}
}

func benchmarkEncode(b *testing.B, f format.Format, codec string) {
	messages := realisticMessages(200)
	e, err := record.NewEncoder(f, false, record.Codecs[codec])
	if err != nil {
		b.Fatal(err)
	}
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		if out, _, _, err = e.Encode(out[:0], messages, math.MaxInt, math.MaxInt, record.ProducerSequence{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(messages)), "ns/change")
	b.ReportMetric(float64(e.RawBytes())/float64(len(messages)), "bytes/change")
	b.ReportMetric(float64(e.RawBytes())/float64(len(out)), "ratio")
}

func BenchmarkPublish(b *testing.B) {
	messages := realisticMessages(200)
	for _, name := range []string{"none", "zstd"} {
		b.Run(name, func(b *testing.B) {
			c, brokers := startFakeCluster(b, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), kfake.BrokerConfigs(map[string]string{"retention.bytes": "1000000"}))
			s := openSink(b, Config{Brokers: brokers, Topic: topicA, Compression: name})
			lane := laneName(topicA, 0, 1)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if _, err := s.Publish(b.Context(), lane, messages); err != nil {
					b.Fatal(err)
				}
				if n%100 == 99 {
					c.ApplyRetention()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(messages)), "ns/change")
		})
	}
}

// startBenchmarkBroker starts a real broker of a benchmark's own.
func startBenchmarkBroker(b *testing.B) *broker.Broker {
	b.Helper()
	require.Integration(b)
	one, err := broker.Start(b.Context(), broker.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := one.Kill(); err != nil {
			b.Error(err)
		}
	})
	return one
}

// BenchmarkFailover measures what a failover does in Kafka, on a real broker: it fences the lanes that the state names,
// reads their tails, and finds out which are gone. Lanes of deleted topics are in the state until the first failover after
// that.
func BenchmarkFailover(b *testing.B) {
	one := startBenchmarkBroker(b)
	cfg := Config{Brokers: one.Brokers(), Topic: topicA, CheckTopics: checkOff}
	gone := topicLanes("k8s.deleted", 143)
	for _, count := range []int{4, 1000} {
		topic := fmt.Sprint("k8s.of-", count)
		createTopic(b, cfg.Brokers, topic, count)
		lanes := topicLanes(topic, count)
		for deadline := time.Now().Add(10 * time.Minute); ; { // until brokers lead what was created
			err := fenceAsTest(b, openSink(b, cfg), lanes...)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				b.Fatal(err)
			}
		}
		layout, _, err := openSink(b, cfg).cluster.DescribeTopic(b.Context(), topic)
		if err != nil {
			b.Fatal(err)
		}
		for i, lane := range lanes {
			lanes[i] = recordedLane(lane, layout.ID)
		}
		for _, recorded := range [][]sinks.Lane{lanes, slices.Concat(lanes, gone)} {
			from := map[sinks.Lane]sinks.LanePosition{}
			for _, l := range recorded {
				from[l] = 0
			}
			b.Run(fmt.Sprintf("lanes=%d/gone=%d", count, len(recorded)-count), func(b *testing.B) {
				for b.Loop() {
					s := openSink(b, cfg)
					mustFence(b, s, recorded...)
					if err := tailOf(b, s, from, func(sinks.Lane, sinks.Emitted) error { return nil }); err != nil {
						b.Fatal(err)
					}
					if left := s.GoneLanes(b.Context(), recorded); len(left) != len(recorded)-count {
						b.Fatalf("%d lanes are gone", len(left))
					}
				}
			})
		}
	}
}

// BenchmarkTopicsOfAFirstStart measures on a real broker how long it takes until the sink knows the lanes of 1,500 topics:
// topics are created and checked, and then, as by another process, only checked.
func BenchmarkTopicsOfAFirstStart(b *testing.B) {
	const count = 1500
	one := startBenchmarkBroker(b)
	prefix := 0
	resolve := func(b *testing.B) {
		s := openSink(b, Config{Brokers: one.Brokers(), Topic: "first.{name}", CreateTopics: CreateTopics{Enabled: true, Partitions: 1}})
		sent := countRequests(s)
		var resolving sync.WaitGroup
		free := make(chan struct{}, s.Concurrency()) // as many lanes are published at a time
		for i := range count {
			free <- struct{}{}
			t := s.topics.topicByName(fmt.Sprintf("first.%d-%d", prefix, i))
			resolving.Go(func() {
				deadline := time.Now().Add(testTimeout) // brokers learn of a new topic late
				_, err := s.topics.refreshLayout(b.Context(), t, nil)
				for err != nil && time.Now().Before(deadline) {
					_, err = s.topics.refreshLayout(b.Context(), t, nil)
				}
				if err != nil {
					b.Error(err)
				}
				<-free
			})
		}
		resolving.Wait()
		b.ReportMetric(float64(sent.Load()), "requests/op")
	}
	b.Run("created", func(b *testing.B) {
		for b.Loop() {
			prefix++
			resolve(b)
		}
	})
	b.Run("checked", func(b *testing.B) {
		for b.Loop() {
			resolve(b)
		}
	})
}

// countRequests counts the requests that a sink sends from now on.
func countRequests(s *Sink) *atomic.Int64 {
	var sent atomic.Int64
	dial := s.cluster.Dialer.DialContext
	s.cluster.Dialer.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &countingConn{Conn: conn, sent: &sent}, err
	}
	return &sent
}

// countingConn counts requests. Each is preceded by its size.
type countingConn struct {
	net.Conn
	sent    *atomic.Int64
	size    []byte // of the next request, as far as it is known
	missing int    // bytes of the current request
}

func (c *countingConn) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		if c.missing == 0 {
			n := min(len(rest), 4-len(c.size))
			c.size, rest = append(c.size, rest[:n]...), rest[n:]
			if len(c.size) == 4 {
				c.missing, c.size = int(binary.BigEndian.Uint32(c.size)), nil
				c.sent.Add(1)
			}
			continue
		}
		n := min(len(rest), c.missing)
		c.missing, rest = c.missing-n, rest[n:]
	}
	return c.Conn.Write(b)
}
