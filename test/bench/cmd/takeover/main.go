// Command takeover measures what it takes to take over a replicated state of many known objects, in Kafka and in NATS: cold,
// and by a stand-by that has followed it. Each is a process of its own, which claims the state, fences the sink, and seeds
// an empty journal, as the exporter does; memory is compared with that of a process that takes over a state without objects.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/natsserver"
)

// Bars, with a million objects.
const (
	coldBar   = 6 * time.Second
	followBar = 2 * time.Second
	memoryBar = int64(250 << 20) // more than without objects
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "takeover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && (args[0] == "write" || args[0] == "take") {
		return runPart(ctx, args[0], args[1:])
	}
	f := flag.NewFlagSet("takeover", flag.ContinueOnError)
	objects := f.Int("objects", 1_000_000, "known objects")
	rounds := f.Int("rounds", 3, "take-overs of each kind; the least counts: what else the machine does only adds")
	noBars := f.Bool("no-bars", false, "report only: missing a bar is no failure")
	if err := f.Parse(args); err != nil {
		return err
	}
	missed, err := measureAll(ctx, *objects, *rounds)
	if err == nil && len(missed) > 0 && !*noBars {
		err = errors.New("missed: " + strings.Join(missed, "; "))
	}
	return err
}

func measureAll(ctx context.Context, objects, rounds int) (missed []string, err error) {
	dir, err := os.MkdirTemp("", "kubecdc-takeover-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	broker, err := kafka.Start(ctx, kafka.Options{Dir: filepath.Join(dir, "kafka")})
	if err != nil {
		return nil, err
	}
	m, err := measure(ctx, dir, "kafka", broker.Address(), objects, rounds)
	if err = errors.Join(err, broker.Kill()); err != nil {
		return nil, err
	}
	server, err := natsserver.Start(ctx, natsserver.Options{Dir: filepath.Join(dir, "nats")})
	if err != nil {
		return nil, err
	}
	n, err := measure(ctx, dir, "nats", server.URL(), objects, rounds)
	return append(m, n...), errors.Join(err, server.Kill())
}

// measure writes a state and takes it over, again and again.
func measure(ctx context.Context, dir, bus, address string, objects, rounds int) (missed []string, err error) {
	at := place{bus: bus, address: address, state: "full"}
	empty := place{bus: bus, address: address, state: "empty"}
	for _, p := range []place{at, empty} {
		n := objects
		if p == empty {
			n = 1
		}
		if _, err := p.take(ctx, dir, "write", n, false); err != nil {
			return nil, err
		}
	}
	base, err := empty.take(ctx, dir, "take", 1, false)
	if err != nil {
		return nil, err
	}
	for _, way := range []struct {
		name   string
		follow bool
		bar    time.Duration
	}{{"cold", false, coldBar}, {"following", true, followBar}} {
		var best taken
		for round := range rounds {
			t, err := at.take(ctx, dir, "take", objects, way.follow)
			if err != nil {
				return nil, err
			}
			if round == 0 || t.took < best.took {
				best.took = t.took
			}
			if round == 0 || t.rss < best.rss {
				best.rss = t.rss
			}
			if round == 0 || t.loaded < best.loaded {
				best.loaded = t.loaded
			}
		}
		more := best.rss - base.rss
		fmt.Printf("%-5s %-9s %d objects: %.2f s (bar %s), and %.2f s to load them for the watch; peak RSS %d MiB, %d more than without objects (bar %d)\n", bus, way.name,
			objects, best.took.Seconds(), way.bar, best.loaded.Seconds(), best.rss>>20, more>>20, memoryBar>>20)
		if best.took > way.bar {
			missed = append(missed, fmt.Sprintf("%s, %s: %s, at most %s", bus, way.name, best.took, way.bar))
		}
		if more > memoryBar {
			missed = append(missed, fmt.Sprintf("%s, %s: %d MiB more memory, at most %d", bus, way.name, more>>20, memoryBar>>20))
		}
	}
	return missed, nil
}

// place is where a state is.
type place struct{ bus, address, state string }

// taken is what a take-over took.
type taken struct {
	took   time.Duration
	loaded time.Duration // to load what is known, as a watch needs it
	rss    int64         // at most until it was taken over
}

// take runs a part in a process of its own.
func (p place) take(ctx context.Context, dir, part string, objects int, follow bool) (t taken, err error) {
	self, err := os.Executable()
	if err != nil {
		return t, err
	}
	journal, err := os.MkdirTemp(dir, "journal-")
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(journal)) }()
	args := []string{
		part, "-bus", p.bus, "-address", p.address, "-state", p.state, "-objects", fmt.Sprint(objects), "-journal", journal,
		fmt.Sprintf("-follow=%v", follow),
	}
	c := exec.CommandContext(ctx, self, args...)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return t, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return t, err
	}
	if err := c.Start(); err != nil {
		return t, err
	}
	lines := bufio.NewScanner(out)
	if follow && lines.Scan() { // it has followed to the end
		_, err = io.WriteString(in, "now\n")
	}
	if lines.Scan() {
		_, scanned := fmt.Sscan(lines.Text(), (*int64)(&t.took), (*int64)(&t.loaded), &t.rss)
		err = errors.Join(err, scanned)
	}
	return t, errors.Join(err, c.Wait())
}
