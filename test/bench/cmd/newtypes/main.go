// Command newtypes measures how long it takes until the first change of a type arrives that was not there before: on a real
// API server, with an exporter that selects everything. It fails where one takes longer than the bar.
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

	"github.com/kubecdc/kubecdc/test/bench/pipeline"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

const (
	bar      = 5 * time.Second
	patience = time.Minute // for one change
	look     = 5 * time.Millisecond
)

func main() {
	program := flag.String("exporter", "../../bin/exporter", "the program to measure")
	types := flag.Int("types", 20, "how many types come, one after the other")
	flag.Parse()
	if *types < 1 {
		fmt.Fprintln(os.Stderr, "newtypes: -types must be 1 at least")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *program, *types)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "newtypes:", err)
		os.Exit(1)
	}
}

// took is how long it took until a change arrived.
type took struct {
	defined time.Duration // since the API server has taken the definition
	created time.Duration // since it has taken the first object, which it does when it serves the type
}

func run(ctx context.Context, program string, types int) error {
	return pipeline.WithControlPlane(ctx, "newtypes", func(dir string, plane *controlplane.ControlPlane) (err error) {
		changes := filepath.Join(dir, "changes")
		exporter, err := pipeline.StartExporter(ctx, program, dir, plane.Kubeconfig(), routing(changes))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, exporter.Stop()) }()
		all, err := measure(ctx, plane.Kubeconfig(), changes, types)
		if err != nil {
			return err
		}
		return report(all)
	})
}

// routing is the exporter's configuration.
func routing(changes string) string {
	return fmt.Sprintf(`resources:
  - select: ["*"]
sinks:
  - name: file
    stdout: {path: %q}
`, changes)
}

// measure lets types come and go.
func measure(ctx context.Context, kubeconfig, changes string, types int) ([]took, error) {
	client, err := pipeline.Client(kubeconfig)
	if err != nil {
		return nil, err
	}
	told, err := os.Open(changes)
	if err != nil {
		return nil, err
	}
	defer told.Close()
	var all []took
	for i := range types {
		t, err := newType(fmt.Sprintf("newtypes%d", i)).come(ctx, client, told)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// report prints the measurement. An error means that the bar was missed.
func report(all []took) error {
	fmt.Printf("first change of %d new types, median and longest\n", len(all))
	median, longest := spread(all, func(t took) time.Duration { return t.created })
	fmt.Printf("since the first object was created:  %8v %8v\n", median, longest)
	median, longest = spread(all, func(t took) time.Duration { return t.defined })
	fmt.Printf("since the definition was written:    %8v %8v   bar: %v\n", median, longest, bar)
	if longest > bar {
		return fmt.Errorf("the first change of a new type took %v, at most %v are allowed", longest, bar)
	}
	return nil
}

func spread(all []took, of func(took) time.Duration) (median, longest time.Duration) {
	var times []time.Duration
	for _, t := range all {
		times = append(times, of(t).Round(time.Millisecond))
	}
	slices.Sort(times)
	return times[len(times)/2], times[len(times)-1]
}
