// Command manylanes measures what a pipeline delivers through few lanes and through many, from a real journal: to a real
// Kafka broker, and to a destination that accepts everything after a millisecond. It also reports the cost of lanes that
// were used once cost afterwards. Rates on shared machines differ from run to run; the ratio of neighbouring rounds is what
// counts.
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
	"runtime"
	"runtime/pprof"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/test/bench/paired"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// The lanes that are compared.
const (
	few  = 6
	many = 4_000
	most = 60_000 // for the destination that costs nothing: no single broker has so many partitions
)

// way is what is compared: lanes, and a window that holds a change or several of each. The first is what others are
// compared with.
type way struct {
	lanes  int
	window int64 // delivery.window
	sink   sinks.Sink
}

const (
	usual = 32 << 20 // the default
	wide  = 64 << 20
)

func main() {
	var l load
	flag.IntVar(&l.changes, "changes", 60_000, "changes in each round")
	flag.IntVar(&l.rounds, "rounds", 5, "rounds of each number of lanes")
	kafkaToo := flag.Bool("kafka", true, "also to a real broker")
	idle := flag.Bool("idle", true, "also wait until lanes that were used once are forgotten, which takes two minutes")
	flag.StringVar(&l.profile, "profile", "", "directory for a processor profile of each number of lanes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, l, *kafkaToo, *idle, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "manylanes:", err)
		os.Exit(1)
	}
}

// load is what is delivered.
type load struct {
	changes, rounds int
	profile         string
}

func run(ctx context.Context, l load, kafkaToo, idle bool, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "manylanes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	log, err := fill(filepath.Join(dir, "journal"), l.changes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.close()) }()
	fmt.Fprintf(out, "%d changes of %d bytes, %d rounds, from a journal on this disk\n\n", l.changes, body, l.rounds)
	if err := l.compare(ctx, log, "accepted after 1 ms", nil, out, []way{
		{few, usual, newNull(few)}, {many, usual, newNull(many)}, {most, usual, newNull(most)},
	}); err != nil {
		return err
	}
	if kafkaToo {
		if err := l.toKafka(ctx, log, filepath.Join(dir, "broker"), out); err != nil {
			return err
		}
	}
	if idle {
		return afterwards(ctx, log, out)
	}
	return nil
}

// toKafka compares topics with few partitions and with many.
func (l load) toKafka(ctx context.Context, log *filled, dir string, out io.Writer) (err error) {
	b, err := broker.Start(ctx, broker.Options{Dir: dir, Properties: map[string]string{
		"log.retention.bytes": "1000000", "log.segment.bytes": "2000000", "log.retention.check.interval.ms": "5000",
		"log.index.size.max.bytes": "65536", "log.initial.task.delay.ms": "5000",
	}, JVM: []string{"-Xms512m", "-Xmx1g", "-XX:+UseSerialGC"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Kill()) }()
	small, err := open(ctx, b.Address(), few)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, small.Close(context.Background())) }()
	large, err := open(ctx, b.Address(), many)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, large.Close(context.Background())) }()
	return l.compare(ctx, log, "Kafka, one broker here", b.Process(), out, []way{{few, usual, small}, {many, usual, large}, {many, wide, large}})
}

// open returns a Kafka sink with a topic of so many partitions.
func open(ctx context.Context, address string, partitions int) (*kafka.Sink, error) {
	s, err := kafka.New(kafka.Config{
		Brokers: []string{address}, Topic: fmt.Sprint("lanes-", partitions), RequestTimeout: time.Minute,
		CreateTopics: kafka.CreateTopics{Enabled: true, Partitions: partitions},
	}, format.JSON, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// compare delivers the journal in each way in turn, and prints medians and their ratios to the first.
func (l load) compare(ctx context.Context, log *filled, name string, server *process.Process, out io.Writer, ways []way) error {
	rates, costs, theirs := make([][]float64, len(ways)), make([][]float64, len(ways)), make([][]float64, len(ways))
	for round := range l.rounds + 1 { // the first warms up
		for i, w := range ways {
			began, own, served := time.Now(), paired.OwnCPU(), cpu(server)
			end, err := l.record(round == l.rounds, fmt.Sprintf("%s-%d", name, i))
			if err != nil {
				return err
			}
			if err := errors.Join(deliver(ctx, log, w), end()); err != nil {
				return fmt.Errorf("%s, %d lanes: %w", name, w.lanes, err)
			}
			if round > 0 {
				n := float64(l.changes)
				rates[i] = append(rates[i], n/time.Since(began).Seconds())
				costs[i] = append(costs[i], float64((paired.OwnCPU()-own).Microseconds())/n)
				theirs[i] = append(theirs[i], float64((cpu(server)-served).Microseconds())/n)
			}
		}
	}
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "destination\tlanes\twindow\tchanges/s\tratio\tCPU us/change\tratio\tof the server")
	for i, w := range ways {
		fmt.Fprintf(table, "%s\t%d\t%d MiB\t%.0f\t%.2f\t%.1f\t%.2f\t%.1f\n", name, w.lanes, w.window>>20,
			paired.Median(rates[i]), paired.Median(paired.Ratios(rates[i], rates[0])),
			paired.Median(costs[i]), paired.Median(paired.Ratios(costs[i], costs[0])), paired.Median(theirs[i]))
	}
	fmt.Fprintf(table, "bar: %d lanes at least 0.5 of the rate, at most 2 times the CPU\n\n", many)
	return table.Flush()
}

// cpu is the processor time that a server has used; 0 where there is none.
func cpu(server *process.Process) time.Duration {
	if server == nil {
		return 0
	}
	return server.Usage().CPU
}

// record profiles one round, where that is asked for.
func (l load) record(last bool, name string) (end func() error, err error) {
	if !last || l.profile == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(filepath.Join(l.profile, name+".prof"))
	if err != nil {
		return nil, err
	}
	return func() error { pprof.StopCPUProfile(); return f.Close() }, pprof.StartCPUProfile(f)
}

// deliver delivers the whole journal.
func deliver(ctx context.Context, log *filled, w way) error {
	p := pipeline(log, w)
	p.Drain(log.Newest())
	return p.Run(ctx)
}

func pipeline(log *filled, w way) *delivery.Pipeline {
	cfg := delivery.Config{WindowBytes: w.window, NewestOffset: log.Newest()}
	if c, ok := w.sink.(sinks.Concurrent); ok {
		cfg.Workers = c.Concurrency()
	}
	if b, ok := w.sink.(sinks.Batched); ok {
		cfg.BatchMessages, cfg.BatchBytes = b.BatchLimits()
	}
	return delivery.New("bench", w.sink, "", log, event.Cursor{}, cfg, slog.New(slog.DiscardHandler))
}

// afterwards uses very many lanes once and reports their cost before and after their removal.
func afterwards(ctx context.Context, log *filled, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	p := pipeline(log, way{most, usual, newNull(most)})
	before := heap()
	var delivering sync.WaitGroup
	delivering.Go(func() { _ = p.Run(ctx) }) // until stop
	defer func() { stop(); delivering.Wait() }()
	for p.Stats().Low < log.Newest() {
		if err := ratelimit.Sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d lanes, used once: ", p.Stats().Lanes)
	for _, state := range []string{"just now", "two minutes later"} {
		if state != "just now" {
			if err := ratelimit.Sleep(ctx, 2*time.Minute+5*time.Second); err != nil {
				return err
			}
		}
		const watch = 5 * time.Second
		cpu := paired.OwnCPU()
		if err := ratelimit.Sleep(ctx, watch); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s %.2f %% of a core, %d lanes, %d KiB; ", state, float64(paired.OwnCPU()-cpu)/float64(watch)*100, p.Stats().Lanes, (heap()-before)>>10)
	}
	fmt.Fprintln(out, "bar: under 1 %, memory back")
	return nil
}

// heap is what is alive, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

var _ delivery.Journal = (*filled)(nil)

// filled is a journal that holds all changes, whatever is settled of it.
type filled struct {
	*journal.Journal
	stop  context.CancelFunc
	ended chan error
}

const sinkName = "bench"

func (f *filled) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	return f.Journal.Settle(ctx, sinkName, c, dead)
}

func (f *filled) close() error {
	f.stop()
	return errors.Join(<-f.ended, f.Close())
}

// fill makes a journal. A second sink, which settles nothing, keeps it whole.
func fill(dir string, changes int) (*filled, error) {
	j, err := journal.Open(journal.Options{Dir: dir, Sinks: []string{sinkName, "keeps"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	f := &filled{Journal: j, stop: stop, ended: make(chan error, 1)}
	go func() { f.ended <- j.Run(ctx) }()
	for c := range changesOf(changes) {
		if err := j.Append(ctx, event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Position: c.ResourceVersion}); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	if err := j.Flush(ctx); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}
