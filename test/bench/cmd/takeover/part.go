package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
)

// gcPercent is that of the exporter.
const gcPercent = 50

var pods = event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}

// part is one process: a journal, a sink and the keeper of the state.
type part struct {
	place
	objects int
	journal *journal.Journal
	sink    bus
	keeper  *state.Writer
}

// bus is a sink that keeps a state.
type bus interface {
	sinks.Fenced
	sinks.StateOpener
}

func runPart(ctx context.Context, name string, args []string) (err error) {
	p := part{}
	f := flag.NewFlagSet("takeover "+name, flag.ContinueOnError)
	f.StringVar(&p.bus, "bus", "", "kafka or nats")
	f.StringVar(&p.address, "address", "", "of the bus")
	f.StringVar(&p.state, "state", "", "name of the state")
	f.IntVar(&p.objects, "objects", 0, "known objects")
	dir := f.String("journal", "", "directory of the journal")
	follow := f.Bool("follow", false, "follow first")
	if err := f.Parse(args); err != nil {
		return err
	}
	debug.SetGCPercent(gcPercent)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	if p.sink, err = p.open(log); err != nil {
		return err
	}
	if p.journal, err = journal.Open(journal.Options{Dir: *dir, Declaration: journal.Declaration{Sinks: []string{"main", state.Sink}}, Logger: log}); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.journal.Run(running) }()
	store, err := p.sink.OpenState(p.state + "-state")
	if err == nil {
		p.keeper, err = state.New(state.Options{Group: p.state, Lease: "bench/" + p.state, Owner: name, Journal: p.journal, Logger: log}, store)
	}
	if err == nil {
		if name == "write" {
			err = p.write(ctx)
		} else {
			err = p.take(ctx, *follow)
		}
		err = errors.Join(err, p.keeper.Close(ctx))
	}
	stop()
	return errors.Join(err, <-ended, p.sink.Close(ctx), p.journal.Close())
}

func (p *part) open(log *slog.Logger) (bus, error) {
	if p.bus == "kafka" {
		return kafka.New(kafka.Config{
			Brokers: []string{p.address}, Topic: "changes", CreateTopics: kafka.CreateTopics{Enabled: true, Partitions: 1},
		}, format.JSON, log)
	}
	return nats.New(nats.Config{URL: p.address, Stream: "CHANGES", Subject: "changes", Create: nats.Create{Enabled: true}}, format.JSON, log)
}

// write writes a state from a journal that knows the objects.
func (p *part) write(ctx context.Context) error {
	seed := journal.Seed{
		ID: "1.bench", Cluster: "cluster",
		Resources: []event.StoredResource{{Resource: pods, Scopes: []event.StoredScope{{ID: "pods", Position: "2000000"}}}},
		Known: func(each func(string, event.Known) error) error {
			for i := range p.objects {
				k := event.Known{
					Key: fmt.Sprintf("namespace-%03d/deployment-%05d-7d4b9c6f5-%05d", i%500, i/20, i), UID: uuid.NewString(), ResourceVersion: fmt.Sprint(1_000_000 + i),
				}
				if err := each("pods", k); err != nil {
					return err
				}
			}
			return nil
		},
	}
	if err := p.journal.Seed(ctx, seed); err != nil {
		return err
	}
	if _, err := p.keeper.TakeOver(ctx, state.TakeOverOptions{Sinks: map[string]sinks.Fenced{"main": p.sink}}); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.keeper.Run(running) }()
	if err := p.journal.Settle(ctx, "main", event.Cursor{Low: p.journal.Newest()}, nil); err != nil {
		stop()
		return errors.Join(err, <-ended)
	}
	err := p.keeper.Flush(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// take takes the state over, and prints how long that took.
func (p *part) take(ctx context.Context, follow bool) error {
	if follow {
		if err := p.follow(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	t, err := p.keeper.TakeOver(ctx, state.TakeOverOptions{Sinks: map[string]sinks.Fenced{"main": p.sink}})
	if err != nil {
		return err
	}
	took := time.Since(began)
	if t.Objects != p.objects || len(t.Waiting) > 0 {
		return fmt.Errorf("%d objects are known, expected %d; sinks that are not fenced: %v", t.Objects, p.objects, t.Waiting)
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return err
	}
	began = time.Now()
	known := deltas.NewKnownSet()
	if _, err := p.journal.LoadResource("pods", known.Add); err != nil {
		return err
	}
	if known.Len() != p.objects {
		return fmt.Errorf("%d objects were loaded, expected %d", known.Len(), p.objects)
	}
	_, err = fmt.Println(int64(took), int64(time.Since(began)), own.Maxrss<<10) // Linux counts in KiB
	return err
}

// follow follows until everything was read and the signal comes.
func (p *part) follow(ctx context.Context) error {
	following, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.keeper.Follow(following) }()
	for tick := time.NewTicker(10 * time.Millisecond); p.keeper.Stats().Objects < p.objects; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			stop()
			return errors.Join(ctx.Err(), <-ended)
		}
	}
	fmt.Println("following")
	if !bufio.NewScanner(os.Stdin).Scan() {
		stop()
		return errors.Join(errors.New("nobody said when"), <-ended)
	}
	stop()
	return <-ended
}
