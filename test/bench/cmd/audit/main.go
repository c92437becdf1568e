// Command audit measures what the audit intake costs the stream: how long changes take from their write to the bus, without
// audit, and with it while no events come, while far more come than there are changes, and while clients stall. One exporter
// after the other reads the same real API server in the same run, in another order each round.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/client-go/dynamic"

	"github.com/kubecdc/kubecdc/test/bench/paired"
	"github.com/kubecdc/kubecdc/test/bench/pipeline"
	"github.com/kubecdc/kubecdc/test/bench/stamped"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// bar is how much longer the slowest hundredth of the changes may take than without audit.
const bar = 1.05

func main() {
	b := bench{}
	flag.StringVar(&b.program, "exporter", "../../bin/exporter", "the program to measure")
	flag.IntVar(&b.rate, "rate", 200, "changes a second")
	flag.IntVar(&b.changes, "changes", 2000, "changes of a round that count; as many as in a second come before")
	flag.IntVar(&b.rounds, "rounds", 6, "rounds")
	flag.IntVar(&b.flood, "flood", 4000, "audit events a second of the flood")
	flag.Parse()
	if b.rate < 1 || b.changes < 100 || b.rounds < 1 || b.flood < batch {
		fmt.Fprintln(os.Stderr, "audit: -rate and -rounds must be 1 at least, -changes 100 and -flood", batch)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := b.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "audit:", err)
		os.Exit(1)
	}
}

// situation is what an exporter has to cope with.
type situation struct {
	name string
	with func(context.Context, *senders) // nil: no audit
}

func (b *bench) situations() []situation {
	return []situation{
		{"without audit", nil},
		{"no events come", func(ctx context.Context, _ *senders) { <-ctx.Done() }},
		{fmt.Sprintf("%d events a second", b.flood), func(ctx context.Context, s *senders) { s.flood(ctx, b.flood) }},
		{"clients stall", func(ctx context.Context, s *senders) { s.stall(ctx) }},
	}
}

// bench is one measurement.
type bench struct {
	program                      string
	rate, changes, rounds, flood int

	dir    string
	plane  *controlplane.ControlPlane
	server *natsserver.Server
	js     jetstream.JetStream
	client dynamic.Interface
	runs   int
}

// result is what one exporter did.
type result struct {
	median, tail float64 // seconds
	memory       float64 // bytes, at most
	cpu          float64 // seconds
	answered     int     // audit events
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "audit"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.plane, err = pipeline.StartControlPlane(ctx, b.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.plane.Stop()) }()
	if b.server, err = natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(b.dir, "nats")}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.Kill()) }()
	nc, err := natsgo.Connect(b.server.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	if b.js, err = jetstream.New(nc); err != nil {
		return err
	}
	if b.client, err = pipeline.Client(b.plane.Kubeconfig()); err != nil {
		return err
	}
	if err := stamped.Create(ctx, b.client); err != nil {
		return err
	}
	all := b.situations()
	results := make([][]result, len(all))
	for round := range b.rounds {
		for i := range all {
			at := (round + i) % len(all)
			r, err := b.measure(ctx, all[at])
			if err != nil {
				return fmt.Errorf("%s: %w", all[at].name, err)
			}
			results[at] = append(results[at], r)
		}
	}
	b.report(all, results)
	return nil
}

// measure runs an exporter of its own for one situation.
func (b *bench) measure(ctx context.Context, s situation) (r result, err error) {
	b.runs++
	stream := fmt.Sprintf("audit%d", b.runs)
	dir := filepath.Join(b.dir, stream)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r, err
	}
	if _, err := b.js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}}); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.js.DeleteStream(ctx, stream)) }()
	routing := stamped.Routing(b.server.URL(), stream)
	var from *senders
	if s.with != nil {
		if from, err = newSenders(dir); err != nil {
			return r, err
		}
		routing += from.settings()
	}
	exporter, err := pipeline.StartExporter(ctx, b.program, dir, b.plane.Kubeconfig(), routing)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, exporter.Stop()) }()
	if s.with != nil {
		sending, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); s.with(sending, from) }()
		defer func() { stop(); <-done }()
	}
	before := exporter.Usage().CPU
	if err := stamped.Write(ctx, b.client, b.runs, b.rate, b.rate+b.changes); err != nil {
		return r, err
	}
	took, err := stamped.Times(ctx, b.js, stream, b.runs, b.rate, b.rate+b.changes)
	if err != nil {
		return r, err
	}
	slices.Sort(took)
	at := func(part float64) float64 { return took[int(part*float64(len(took)-1))].Seconds() }
	usage := exporter.Usage()
	r = result{median: at(0.5), tail: at(0.99), memory: float64(usage.PeakRSS), cpu: (usage.CPU - before).Seconds()}
	if from != nil {
		r.answered = int(from.answered.Load())
	}
	return r, nil
}

// report prints the measurement.
func (b *bench) report(all []situation, results [][]result) {
	fmt.Printf("from the write of a change to the bus, %d rounds of %d changes at %d a second; medians of the rounds\n\n", b.rounds, b.changes, b.rate)
	fmt.Printf("%-24s %10s %10s %12s %10s %8s %12s\n", "", "median", "99 %", "99 % / off", "peak RSS", "CPU", "events")
	tails := make([][]float64, len(all))
	for i, s := range all {
		var r [4][]float64
		answered := 0
		for _, one := range results[i] {
			for k, v := range []float64{one.median, one.tail, one.memory, one.cpu} {
				r[k] = append(r[k], v)
			}
			answered += one.answered
		}
		tails[i] = r[1]
		ratio := paired.Median(paired.Ratios(tails[i], tails[0]))
		fmt.Printf("%-24s %10v %10v %12.3f %7.0f MB %7.2fs %12d\n", s.name, round(paired.Median(r[0])), round(paired.Median(r[1])), ratio,
			paired.Median(r[2])/1e6, paired.Median(r[3]), answered)
	}
	fmt.Printf("\n99 %% to that without audit, median of the rounds   bar: %.2f\n", bar)
}

func round(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond)
}
