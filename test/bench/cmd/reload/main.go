// Command reload measures how long changes wait while a running exporter applies an edited configuration, and for a restart:
// on a real API server with many objects of many types, all of them selected. It fails where one waits longer than the bar,
// or where an edit that selects nothing else costs a LIST.
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
	bar        = time.Second             // the longest that a change may wait because of a reload
	restartBar = 1200 * time.Millisecond // and because of a restart
)

func main() {
	program := flag.String("exporter", "../../bin/exporter", "the program to measure")
	types := flag.Int("types", 100, "how many types there are")
	objects := flag.Int("objects", 100_000, "how many objects there are, of all types")
	reloads := flag.Int("reloads", 10, "how many edits are applied, one after the other")
	flag.Parse()
	if *types < 1 || *objects < *types || *reloads < 1 {
		fmt.Fprintln(os.Stderr, "reload: -types and -reloads must be 1 at least, and -objects at least as many as -types")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *program, *types, *objects, *reloads)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "reload:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program string, types, objects, reloads int) error {
	return pipeline.WithControlPlane(ctx, "reload", func(dir string, plane *controlplane.ControlPlane) (err error) {
		client, err := pipeline.Client(plane.Kubeconfig())
		if err != nil {
			return err
		}
		c := &cluster{client: client, types: types}
		if err := c.fill(ctx, objects); err != nil {
			return err
		}
		changes := filepath.Join(dir, "changes")
		start := func() (*pipeline.Exporter, error) {
			return pipeline.StartExporter(ctx, program, dir, plane.Kubeconfig(), routing(changes))
		}
		exporter, err := start()
		if err != nil {
			return err
		}
		m := &measurement{cluster: c, exporter: exporter, changes: changes}
		defer func() { err = errors.Join(err, m.exporter.Stop()) }()
		if err := m.measure(ctx, reloads, start); err != nil {
			return err
		}
		return m.report(objects)
	})
}

// routing is the exporter's configuration before the first edit.
func routing(changes string) string {
	return fmt.Sprintf(`resources:
  - select: ["*.%s"]
    fields: {drop: [status]}
sinks:
  - name: file
    stdout: {path: %q}
`, group, changes)
}

// report prints the measurement. An error means that a bar was missed.
func (m *measurement) report(objects int) error {
	slices.Sort(m.atRest)
	slices.Sort(m.longest)
	show := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	last := m.longest[len(m.longest)-1]
	fmt.Printf("%d reloads with %d objects of %d types\n", len(m.longest), objects, m.cluster.types)
	fmt.Printf("a change at rest, median and longest:              %8v %8v\n", show(m.atRest[len(m.atRest)/2]), show(m.atRest[len(m.atRest)-1]))
	fmt.Printf("the longest wait of each reload, median and longest: %6v %8v   bar: %v\n", show(m.longest[len(m.longest)/2]), show(last), bar)
	fmt.Printf("LIST requests of the reloads:                      %8d   bar: 0\n", m.lists)
	fmt.Printf("a restart, until what changed meanwhile is delivered: %5v   bar: %v\n", show(m.restart), restartBar)
	if last > bar || m.lists > 0 || m.restart > restartBar {
		return fmt.Errorf("a change waited %v, %v for a restart, and %d LISTs were sent", show(last), show(m.restart), m.lists)
	}
	return nil
}
