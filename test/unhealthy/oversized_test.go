package unhealthy_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	natssink "github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// heavyBytes is the size of a heavy change.
const heavyBytes = 32 << 10

// randomText returns text that no codec makes much shorter.
func randomText(n int) string {
	b := make([]byte, n*3/4)
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rand.Uint64())
	}
	return base64.StdEncoding.EncodeToString(b)
}

// answers counts what a destination accepts and rejects, and checks the order.
type answers struct {
	publishes, rejections int
	accepted              []uint64
}

// ask publishes through a sink and counts the answer.
func (a *answers) ask(ctx context.Context, s sinks.Sink, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := s.Publish(ctx, lane, batch)
	a.publishes++
	if errors.As(err, new(*sinks.RejectedError)) {
		a.rejections++
	}
	for _, m := range batch[:n] {
		a.accepted = append(a.accepted, m.Offset)
	}
	return n, err
}

type askedKafka struct {
	*kafka.Sink
	*answers
}

func (a askedKafka) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	return a.ask(ctx, a.Sink, lane, batch)
}

type askedNATS struct {
	*natssink.Sink
	*answers
}

func (a askedNATS) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	return a.ask(ctx, a.Sink, lane, batch)
}

// load is a number of changes of one lane, three in ten of them heavy.
type load struct {
	changes     int
	fits        bool // the destination takes the heavy ones
	deadLetters bool // what it does not take becomes a dead letter; otherwise it is truncated
}

func isHeavy(n int) bool { return n%10 < 3 }

// limit returns what the destination takes.
func (l load) limit() int {
	if l.fits {
		return 1 << 20
	}
	return heavyBytes / 2
}

// deliver appends the changes to a new journal and delivers them through a sink. It returns changes a second.
func (l load) deliver(t *testing.T, sink sinks.Sink, seen *answers) (rate float64) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Declaration: journal.Declaration{Sinks: []string{"kafka"}}, Logger: quiet})
	must(t, err)
	config := delivery.Config{Retry: delivery.RetryConfig{Min: 100 * time.Millisecond, Max: time.Second},
		DeadLetters: func(after uint64) ([]uint64, error) { return j.DeadLetterOffsets("kafka", after) }}
	config.BatchMessages, config.BatchBytes = sink.(sinks.Batched).BatchLimits()
	if !l.deadLetters {
		config.Truncate = shape.TruncateOnce
	}
	p := delivery.New("kafka", sink, "", sinkJournal{j}, event.Cursor{}, config, quiet)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := j.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	l.appendTo(t, j)
	began := time.Now()
	p.Drain(uint64(l.changes))
	bounded, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	err = p.Run(bounded)
	took, stats := time.Since(began), p.Stats()
	letters, unread := j.DeadLetterOffsets("kafka", 0)
	stop()
	running.Wait()
	must(t, errors.Join(err, unread, sink.Close(context.Background()), j.Close()))
	l.judge(t, seen.accepted, letters, stats)
	return float64(l.changes) / took.Seconds()
}

func (l load) appendTo(t *testing.T, j *journal.Journal) {
	t.Helper()
	for n := range l.changes {
		c := &event.Change{Type: event.Updated, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: "t0", Name: fmt.Sprint("o", n%7), UID: fmt.Sprint("u", n%7), ResourceVersion: fmt.Sprint(n + 1), ObservedAt: time.Now().UTC()}
		size := 1500
		if isHeavy(n) {
			size = heavyBytes
		}
		c.After = fmt.Appendf(nil, `{"kind":"Pod","metadata":{"name":%q},"status":{"n":%d,"text":"%s"}}`, c.Name, n, randomText(size))
		must(t, j.Append(t.Context(), event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}}))
	}
}

// judge checks that each change arrived once, in order, or is a dead letter if that is what becomes of it.
func (l load) judge(t *testing.T, accepted, letters []uint64, s delivery.Stats) {
	t.Helper()
	var wantAccepted, wantLetters []uint64
	truncated := 0
	for n := range l.changes {
		if isHeavy(n) && !l.fits {
			if l.deadLetters {
				wantLetters = append(wantLetters, uint64(n+1))
				continue
			}
			truncated++
		}
		wantAccepted = append(wantAccepted, uint64(n+1))
	}
	if !slices.Equal(accepted, wantAccepted) || !slices.Equal(letters, wantLetters) || int(s.Truncated) != truncated {
		t.Errorf("%+v: %d accepted, want %d; %d dead letters, want %d; %d truncated, want %d", l,
			len(accepted), len(wantAccepted), len(letters), len(wantLetters), s.Truncated, truncated)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kafkaLane returns how to open a sink with one lane to a topic with the limit.
func kafkaLane(t *testing.T) func(load, *answers) sinks.Sink {
	w := newCluster(t, 1)
	quiet := slog.New(slog.DiscardHandler)
	next := 0
	return func(l load, a *answers) sinks.Sink {
		next++
		s, err := kafka.New(kafka.Config{Brokers: []string{w.client.Addr.String()}, Topic: fmt.Sprint("large", next), CreateTopics: kafka.CreateTopics{
			Enabled: true, Configs: []kafka.TopicConfig{{Name: "max.message.bytes", Value: fmt.Sprint(l.limit())}}}}, format.JSON, quiet)
		must(t, err)
		return askedKafka{s, a}
	}
}

// natsLane returns how to open a sink with one lane to a stream with the limit.
func natsLane(t *testing.T) func(load, *answers) sinks.Sink {
	require.Integration(t)
	server, err := natsserver.Start(t.Context(), natsserver.Options{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(func() { must(t, server.Kill()) })
	conn, err := nats.Connect(server.URL())
	must(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	must(t, err)
	next := 0
	return func(l load, a *answers) sinks.Sink {
		next++
		name := fmt.Sprint("large", next)
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, AllowBatchPublish: true, MaxMsgSize: int32(l.limit())})
		must(t, err)
		s, err := natssink.New(natssink.Config{URL: server.URL(), Stream: name, Subject: name + ".{resource}.{namespace}.{name}"}, format.JSON,
			slog.New(slog.DiscardHandler))
		must(t, err)
		return askedNATS{s, a}
	}
}

// TestChangesThatAreTooLargeDoNotStopTheirLane has three of ten changes of a lane exceed the limit of its destination. They
// are truncated, or become dead letters, and all but the first are never sent. At full size the lane has at least half the
// rate of one that takes the same changes.
func TestChangesThatAreTooLargeDoNotStopTheirLane(t *testing.T) {
	const maxRejected = 2 // one by the first lane, which a topic has until its partitions are known, and one by the next
	changes, rounds, full := 600, 1, os.Getenv("UNHEALTHY_FOR") != ""
	if full {
		changes, rounds = 20_000, 5
	}
	for name, newLane := range map[string]func(*testing.T) func(load, *answers) sinks.Sink{"kafka": kafkaLane, "nats": natsLane} {
		t.Run(name, func(t *testing.T) {
			open := newLane(t)
			ratios := map[string][]float64{}
			for range rounds {
				clean := 0.0
				for _, policy := range []string{"clean", "truncated", "dead letters"} {
					l := load{changes: changes, fits: policy == "clean", deadLetters: policy == "dead letters"}
					seen := &answers{}
					rate := l.deliver(t, open(l, seen), seen)
					if t.Logf("%s: %.0f changes/s, %d Publish calls, %d rejections", policy, rate, seen.publishes, seen.rejections); seen.rejections > maxRejected {
						t.Errorf("%s: %d rejections", policy, seen.rejections)
					}
					if l.fits {
						clean = rate
					}
					ratios[policy] = append(ratios[policy], rate/clean)
				}
			}
			for policy, all := range ratios {
				slices.Sort(all)
				if median := all[len(all)/2]; full && median < 0.5 {
					t.Errorf("%s: %.2f times the rate of a clean lane", policy, median)
				} else if full {
					t.Logf("%s: %.2f times the rate of a clean lane, of %.2f", policy, median, all)
				}
			}
		})
	}
}
