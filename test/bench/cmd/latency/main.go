// Command latency measures how long a change takes from its write to the bus: through the exporter, and through a plain
// watch that publishes each event and waits for the acknowledgement. Both read the same real API server in the same run and
// write to streams of one NATS server, which stamps messages with its own clock; so only the exporters differ.
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

	"github.com/kubecdc/kubecdc/test/bench/pipeline"
	"github.com/kubecdc/kubecdc/test/bench/stamped"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// Bars, above the plain watch.
const (
	medianBar = 2 * time.Millisecond
	tailBar   = 8 * time.Millisecond
)

func main() {
	program := flag.String("exporter", "../../bin/exporter", "the program to measure")
	rate := flag.Int("rate", 200, "changes a second")
	changes := flag.Int("changes", 6000, "changes that count; as many as in two seconds come before")
	flag.Parse()
	if *rate < 1 || *changes < 100 {
		fmt.Fprintln(os.Stderr, "latency: -rate must be 1 at least and -changes 100")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *program, *rate, *changes)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "latency:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string, rate, changes int) error {
	return pipeline.WithControlPlane(ctx, "latency", func(dir string, plane *controlplane.ControlPlane) (err error) {
		server, err := natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(dir, "nats")})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Kill()) }()
		nc, err := natsgo.Connect(server.URL())
		if err != nil {
			return err
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		for _, name := range []string{floorStream, exporterStream} {
			if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}}); err != nil {
				return err
			}
		}
		exporter, err := pipeline.StartExporter(ctx, program, dir, plane.Kubeconfig(), stamped.Routing(server.URL(), exporterStream, namespace))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, exporter.Stop()) }()
		client, err := pipeline.Client(plane.Kubeconfig())
		if err != nil {
			return err
		}
		warm := 2 * rate
		if err := write(ctx, client, js, rate, warm+changes); err != nil {
			return err
		}
		var took [2][]time.Duration
		for i, name := range []string{floorStream, exporterStream} {
			stamps, err := stamped.Stamps(ctx, js, name, 0, warm+changes)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for _, s := range stamps[warm:] {
				took[i] = append(took[i], s.Stored.Sub(s.Written))
			}
		}
		report(rate, took[0], took[1])
		return nil
	})
}

// write makes changes at a rate while a plain watch publishes them too.
func write(ctx context.Context, client dynamic.Interface, js jetstream.JetStream, rate, changes int) error {
	if err := stamped.Create(ctx, client, namespace); err != nil {
		return err
	}
	watching, err := watch(ctx, client)
	if err != nil {
		return err
	}
	floor := make(chan error, 1)
	go func() { floor <- publish(ctx, watching, js, changes) }()
	if _, err := stamped.Write(ctx, client, namespace, 0, rate, changes); err != nil {
		watching.Stop()
		return errors.Join(err, <-floor)
	}
	err = <-floor
	watching.Stop()
	return err
}

// report prints the measurement.
func report(rate int, floor, exporter []time.Duration) {
	above := make([]time.Duration, len(floor))
	for i := range floor {
		above[i] = exporter[i] - floor[i]
	}
	fmt.Printf("from the write of a change to the bus, %d changes at %d a second\n\n", len(floor), rate)
	fmt.Printf("%-28s %10s %10s %10s\n", "", "median", "99 %", "longest")
	line := func(name string, all []time.Duration) (median, tail time.Duration) {
		sorted := slices.Sorted(slices.Values(all))
		at := func(part float64) time.Duration {
			return sorted[int(part*float64(len(sorted)-1))].Round(10 * time.Microsecond)
		}
		fmt.Printf("%-28s %10v %10v %10v\n", name, at(0.5), at(0.99), at(1))
		return at(0.5), at(0.99)
	}
	floorMedian, floorTail := line("a plain watch that publishes", floor)
	median, tail := line("the exporter", exporter)
	line("difference, by change", above)
	fmt.Printf("\nmedian above the plain watch: %v   bar: %v\n", median-floorMedian, medianBar)
	fmt.Printf("99 %% above the plain watch:   %v   bar: %v\n", tail-floorTail, tailBar)
}
