// Command natslanes measures what the NATS sink delivers against nats.go's PublishAsync with a window of 1,024, on the same
// server in the same run: changes of 4 KB to a file-backed stream, in batches and by message ID. Rates on shared machines
// differ from run to run; the ratio of neighbouring rounds is what counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/test/bench/paired"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

const (
	stream  = "BENCH"
	subject = "bench.{group}.{resource}.{namespace}.{name}"
	window  = 1024
	objects = 4096
	body    = 4000 // bytes of an object
	bar     = 1.2
)

func main() {
	messages := flag.Int("messages", 40_000, "messages in each round")
	rounds := flag.Int("rounds", 10, "rounds of each way")
	lasts := flag.Duration("hot", 10*time.Second, "how long one object changes again and again")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *messages, *rounds, *lasts, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "natslanes:", err)
		os.Exit(1)
	}
}

// publish returns when everything is acknowledged.
type publish func(ctx context.Context, changes []*event.Change) error

// way is one way to publish. It starts again in each round, because the stream does: a sink that was there before would find
// that the stream went back.
type way struct {
	name    string
	batches bool // the stream takes them
	begin   func(ctx context.Context) (p publish, end func() error, err error)
}

func run(ctx context.Context, messages, rounds int, lasts time.Duration, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "natslanes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(dir, "server")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Kill()) }()
	nc, err := natsgo.Connect(server.URL(), natsgo.Timeout(time.Minute))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(window), jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		return err
	}
	ways := []way{
		{"PublishAsync, window 1024", false, async(js, false)}, {"PublishAsync, window 1024, with message IDs", false, async(js, true)},
		{"the sink, in batches", true, sink(server.URL())}, {"the sink, by message ID", false, sink(server.URL())},
	}
	if err := compare(ctx, js, server, ways, messages, rounds, out); err != nil {
		return err
	}
	return hot(ctx, server, lasts, out)
}

// compare runs the ways in turn and prints the median rate of each, and its ratio to the first within the same rounds.
func compare(ctx context.Context, js jetstream.JetStream, server *natsserver.Server, ways []way, messages, rounds int, out io.Writer) error {
	rates, costs := make([][]float64, len(ways)), make([][]float64, len(ways))
	for round := range rounds + 1 { // the first warms up
		for i, w := range ways {
			if err := js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				return err
			}
			if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"bench.>"}, AllowBatchPublish: w.batches}); err != nil {
				return err
			}
			changes := changesOf(round*len(ways)+i, messages)
			publish, end, err := w.begin(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			began, before := time.Now(), paired.CPU(server.Process())
			err = publish(ctx, changes)
			took, used := time.Since(began), paired.CPU(server.Process())-before
			if err := errors.Join(err, end()); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if round > 0 {
				rates[i] = append(rates[i], float64(messages)/took.Seconds())
				costs[i] = append(costs[i], float64(used.Microseconds())/float64(messages))
			}
		}
	}
	fmt.Fprintf(out, "NATS, %d changes of %d bytes, %d rounds, one file-backed stream on this machine\n\n", messages, body, rounds)
	fmt.Fprintf(out, "%-45s %10s %7s %10s %20s\n", "way", "changes/s", "ratio", "with IDs", "CPU us/change, both")
	for i, w := range ways {
		fmt.Fprintf(out, "%-45s %10.0f %7.2f %10.2f %20.1f\n", w.name, paired.Median(rates[i]),
			paired.Median(paired.Ratios(rates[i], rates[0])), paired.Median(paired.Ratios(rates[i], rates[1])), paired.Median(costs[i]))
	}
	fmt.Fprintf(out, "\nbar: in batches at least %.1f of PublishAsync\n", bar)
	return nil
}

// changesOf makes new versions of the same objects, interleaved as time would.
func changesOf(run, n int) []*event.Change {
	after := []byte(`{"kind":"Pod","data":"` + strings.Repeat("0123456789abcdef", body/16) + `"}`)
	changes := make([]*event.Change, n)
	for i := range changes {
		changes[i] = &event.Change{Type: event.Updated, Cluster: "bench", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
			Namespace: "shop", Name: fmt.Sprint("web-", i%objects), UID: fmt.Sprintf("%d-%d", run, i%objects),
			ResourceVersion: fmt.Sprint(run*n + i), ObservedAt: time.Now(), After: after}
	}
	return changes
}

// async publishes as most programs do. Order and duplicates under faults are not its concern.
func async(js jetstream.JetStream, ids bool) func(context.Context) (publish, func() error, error) {
	all := func(ctx context.Context, changes []*event.Change) error {
		template, err := sinks.ParseTemplate(subject)
		if err != nil {
			return err
		}
		for _, c := range changes {
			m := &natsgo.Msg{Subject: string(template.AppendName(nil, c, nats.AppendToken)), Data: format.AppendJSON(nil, c)}
			if ids {
				m.Header = natsgo.Header{natsgo.MsgIdHdr: {c.ID()}}
			}
			if _, err := js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err != nil {
				return err
			}
		}
		select {
		case <-js.PublishAsyncComplete():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return func(context.Context) (publish, func() error, error) { return all, func() error { return nil }, nil }
}

// sink opens a sink, which is connected when the round begins.
func sink(url string) func(context.Context) (publish, func() error, error) {
	return func(ctx context.Context) (publish, func() error, error) {
		s, err := nats.New(nats.Config{URL: url, Stream: stream, Subject: subject}, format.JSON, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, nil, err
		}
		end := func() error { return s.Close(context.Background()) }
		if err := s.Ping(ctx); err != nil {
			return nil, nil, errors.Join(err, end())
		}
		return through(s), end, nil
	}
}

// through publishes as delivery does: one lane, in batches as large as the sink asks for.
func through(s *nats.Sink) publish {
	return func(ctx context.Context, changes []*event.Change) error {
		messages := make([]sinks.Message, len(changes))
		for i, c := range changes {
			messages[i] = sinks.Message{Offset: uint64(i + 1), Change: c}
		}
		lane, err := s.Lane(changes[0])
		if err != nil {
			return err
		}
		limit, bytes := s.BatchLimits()
		limit = min(limit, int(bytes)/changes[0].Size())
		for batch := range slices.Chunk(messages, limit) {
			if _, err := s.Publish(ctx, lane, batch); err != nil {
				return err
			}
		}
		return nil
	}
}
