// Command audit measures what the audit intake costs the stream: how long changes take to the bus from when their writers
// were answered, without audit, and with it while no events come, while far more come than there are changes, and while
// clients stall. Each situation has an exporter and a namespace of its own on the same real API server. They take turns of a
// few seconds, so that what else the machine does is in all of them; the others are idle meanwhile. A second exporter
// without audit shows how far two that are the same are apart, and for a third one the flood goes to its
// neighbour, what the flood takes of the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/client-go/dynamic"

	"github.com/kubecdc/kubecdc/test/bench/pipeline"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// bar is how much longer the slowest hundredth of the changes of a turn may take than without audit.
const bar = 1.05

func main() {
	b := bench{}
	flag.StringVar(&b.program, "exporter", "../../bin/exporter", "the program to measure")
	flag.IntVar(&b.rate, "rate", 200, "changes a second")
	flag.IntVar(&b.changes, "changes", 400, "changes of a turn that count; half as many come before")
	flag.IntVar(&b.turns, "turns", 20, "turns of each situation")
	flag.IntVar(&b.events, "flood", 4000, "audit events a second of the flood")
	flag.BoolVar(&b.together, "together", false, "let all have their turns at once: what else is done on the machine, and what the flood takes of it, hits all alike")
	flag.Parse()
	if b.rate < 1 || b.turns < 1 || b.changes < 100 || b.events < batch {
		fmt.Fprintln(os.Stderr, "audit: -rate and -turns must be 1 at least, -changes 100 and -flood", batch)
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

// bench is one measurement.
type bench struct {
	program                      string
	rate, changes, turns, events int
	together                     bool

	dir    string
	plane  *controlplane.ControlPlane
	server *natsserver.Server
	js     jetstream.JetStream
	client dynamic.Interface
}

func (b *bench) run(ctx context.Context) error {
	return pipeline.WithControlPlane(ctx, "audit", func(dir string, plane *controlplane.ControlPlane) (err error) {
		b.dir, b.plane = dir, plane
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
		all := b.situations()
		for _, s := range all {
			defer func() { err = errors.Join(err, s.stop()) }()
			if err := s.start(ctx, b); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		for turn := range b.turns {
			if err := b.take(ctx, all, turn); err != nil {
				return err
			}
		}
		b.report(all)
		return nil
	})
}

// take lets every situation have a turn, one after the other, or all at once.
func (b *bench) take(ctx context.Context, all []*situation, turn int) error {
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i := range all {
		running.Go(func() {
			s := all[(turn+i)%len(all)]
			if err := s.turn(ctx, b, turn); err != nil {
				errs[i] = fmt.Errorf("%s: %w", s.name, err)
			}
		})
		if !b.together {
			running.Wait()
		}
	}
	running.Wait()
	return errors.Join(errs...)
}

// report prints the measurement.
func (b *bench) report(all []*situation) {
	fmt.Printf("from the answer to a writer to the bus, %d turns of %d changes at %d a second\n\n", b.turns, b.changes, b.rate)
	fmt.Printf("%-24s %10s %10s %10s %10s %10s %8s %10s\n", "", "median", "99 %", "in a turn", "to off", "peak RSS", "CPU", "events")
	base := all[0].inTurn(0.99)
	for _, s := range all {
		usage := s.exporter.Usage()
		events := int64(0)
		if s.from != nil {
			events = s.from.answered.Load()
		}
		inTurn := s.inTurn(0.99)
		fmt.Printf("%-24s %10v %10v %10v %10.3f %7d MB %7.2fs %10d\n", s.name, rounded(s.at(0.5)), rounded(s.at(0.99)), rounded(inTurn),
			float64(inTurn)/float64(base), usage.PeakRSS/1_000_000, s.cpu.Seconds(), events)
	}
	fmt.Printf("\n99 %% in the middle one of the turns, to that without audit   bar: %.2f\n", bar)
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
