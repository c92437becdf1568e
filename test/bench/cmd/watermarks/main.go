// Command watermarks measures what watermarks cost an exporter: next to one without them, on the same real API server with
// many types, idle and under load. It fails where they cost more CPU than the bar.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubecdc/kubecdc/test/bench/broker"
	"github.com/kubecdc/kubecdc/test/bench/pipeline"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

const (
	every = 10 * time.Second
	bar   = 0.02 // of one core while idle, and of the CPU of an exporter without watermarks under load
)

func main() {
	program := flag.String("exporter", "../../bin/exporter", "the program to measure")
	types := flag.Int("types", 100, "how many types there are")
	rate := flag.Int("rate", 500, "how many changes a second there are under load")
	last := flag.Duration("for", time.Minute, "how long each of the two measurements lasts")
	flag.Parse()
	if *types < 1 || *rate < 1 || *last < every {
		fmt.Fprintf(os.Stderr, "watermarks: -types and -rate must be 1 at least, and -for %v\n", every)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *program, *types, *rate, *last)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "watermarks:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string, types, rate int, last time.Duration) error {
	return pipeline.WithControlPlane(ctx, "watermarks", func(dir string, plane *controlplane.ControlPlane) (err error) {
		client, err := pipeline.Client(plane.Kubeconfig())
		if err != nil {
			return err
		}
		c, err := fill(ctx, client, types)
		if err != nil {
			return err
		}
		kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(broker.Partitions, "without", "with"))
		if err != nil {
			return err
		}
		defer kafka.Close()
		m := &measurement{cluster: c, rate: rate, last: last}
		for _, one := range []struct {
			topic, more string
			to          **pipeline.Exporter
		}{
			{"without", "", &m.without}, {"with", fmt.Sprintf("    watermarks: %v\n", every), &m.with},
		} {
			at := filepath.Join(dir, one.topic)
			if err := os.Mkdir(at, 0o755); err != nil {
				return err
			}
			routing := fmt.Sprintf("resources:\n  - select: [\"*.%s\"]\nsinks:\n  - name: kafka\n    kafka: {brokers: %q, topic: %s}\n%s",
				group, kafka.ListenAddrs(), one.topic, one.more)
			exporter, err := pipeline.StartExporter(ctx, program, at, plane.Kubeconfig(), routing)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, exporter.Stop()) }()
			*one.to = exporter
		}
		return m.measure(ctx, kafka.ListenAddrs()[0])
	})
}
