package unhealthy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
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

// sizeLimit is what the destinations take, in bytes; heavyBytes do not fit, however they are compressed.
const sizeLimit, heavyBytes = 16 << 10, 32 << 10

// randomText returns text that no codec makes shorter than the limit.
func randomText(n int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	return string(b)
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

// load is a number of changes of one lane, of which three in ten are too large for the destination.
type load struct {
	changes       int
	large, letter bool // too large ones: whether there are any, and whether they become dead letters
}

func (l load) isLarge(n int) bool { return l.large && n%10 < 3 }

// deliver appends the changes to a new journal and delivers them through a sink. It returns changes a second.
func (l load) deliver(t *testing.T, sink sinks.Sink, seen *answers) (rate float64) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Declaration: journal.Declaration{Sinks: []string{"kafka"}}, Logger: quiet})
	must(t, err)
	config := delivery.Config{Retry: delivery.RetryConfig{Min: 100 * time.Millisecond, Max: time.Second},
		DeadLetters: func(after uint64) ([]uint64, error) { return j.DeadLetterOffsets("kafka", after) }}
	config.BatchMessages, config.BatchBytes = sink.(sinks.Batched).BatchLimits()
	if !l.letter {
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
	var body [2]string // the same text for all is as new to a codec in each batch: its window is smaller than a large one
	body[0], body[1] = randomText(1500), randomText(heavyBytes)
	for n := range l.changes {
		c := &event.Change{Type: event.Updated, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: "t0", Name: fmt.Sprint("o", n%7), UID: fmt.Sprint("u", n%7), ResourceVersion: fmt.Sprint(n + 1), ObservedAt: time.Now().UTC()}
		text := body[0]
		if l.isLarge(n) {
			c.Namespace, text = "t0", body[1]
		}
		c.After = fmt.Appendf(nil, `{"kind":"Pod","metadata":{"name":%q},"status":{"n":%d,"text":%q}}`, c.Name, n, text)
		must(t, j.Append(t.Context(), event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}}))
	}
}

// judge checks that each change arrived once, in order, or is a dead letter if that is what becomes of it.
func (l load) judge(t *testing.T, accepted, letters []uint64, s delivery.Stats) {
	t.Helper()
	var wantAccepted, wantLetters []uint64
	truncated := 0
	for n := range l.changes {
		switch {
		case l.isLarge(n) && l.letter:
			wantLetters = append(wantLetters, uint64(n+1))
			continue
		case l.isLarge(n):
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
func kafkaLane(t *testing.T) func(*answers) sinks.Sink {
	w := newCluster(t, 1, 1)
	quiet := slog.New(slog.DiscardHandler)
	next := 0
	return func(a *answers) sinks.Sink {
		next++
		s, err := kafka.New(kafka.Config{Brokers: []string{w.client.Addr.String()}, Topic: fmt.Sprint("large", next), CreateTopics: kafka.CreateTopics{
			Enabled: true, Configs: []kafka.TopicConfig{{Name: "max.message.bytes", Value: fmt.Sprint(sizeLimit)}}}}, format.JSON, quiet)
		must(t, err)
		return askedKafka{s, a}
	}
}

// natsLane returns how to open a sink with one lane to a stream with the limit.
func natsLane(t *testing.T) func(*answers) sinks.Sink {
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
	return func(a *answers) sinks.Sink {
		next++
		name := fmt.Sprint("large", next)
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, AllowBatchPublish: true, MaxMsgSize: sizeLimit})
		must(t, err)
		s, err := natssink.New(natssink.Config{URL: server.URL(), Stream: name, Subject: name + ".{resource}.{namespace}.{name}"}, format.JSON,
			slog.New(slog.DiscardHandler))
		must(t, err)
		return askedNATS{s, a}
	}
}

// TestChangesThatAreTooLargeDoNotStopTheirLane has three of ten changes of a lane exceed the limit of its destination. They
// are truncated, or become dead letters, and all but the first are never sent. At full size the lane has at least half the
// rate of one where all changes fit.
func TestChangesThatAreTooLargeDoNotStopTheirLane(t *testing.T) {
	changes, rounds, full := 600, 1, os.Getenv("UNHEALTHY_FOR") != ""
	if full {
		changes, rounds = 20_000, 3
	}
	for name, newLane := range map[string]func(*testing.T) func(*answers) sinks.Sink{"kafka": kafkaLane, "nats": natsLane} {
		t.Run(name, func(t *testing.T) {
			open := newLane(t)
			rates := map[string][]float64{}
			for range rounds {
				for policy, l := range map[string]load{"clean": {}, "truncated": {large: true}, "dead letters": {large: true, letter: true}} {
					l.changes = changes
					seen := &answers{}
					rate := l.deliver(t, open(seen), seen)
					rates[policy] = append(rates[policy], rate)
					t.Logf("%s: %.0f changes/s, %d Publish calls, %d rejections", policy, rate, seen.publishes, seen.rejections)
					if !strings.HasPrefix(policy, "clean") && seen.rejections > 20 {
						t.Errorf("%s: %d rejections", policy, seen.rejections)
					}
				}
			}
			for policy, all := range rates {
				slices.Sort(all)
				if ratio := all[len(all)/2] / rates["clean"][len(all)/2]; full && ratio < 0.5 {
					t.Errorf("%s: %.2f times the rate of a clean lane", policy, ratio)
				}
			}
		})
	}
}
