// Command away kills a NATS server, or with -kafka a Kafka broker, for a while, as changes go on, and prints what that
// costs against the bars: memory that stays flat, another sink that does not notice, the first change within two seconds of
// the server's return, and the rest at ten times the rate at which changes come.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/test/bench/away"
)

func main() {
	rate := flag.Int("rate", 500, "changes a second")
	outage := flag.Duration("outage", 10*time.Minute, "how long the server is away")
	kafka := flag.Bool("kafka", false, "a Kafka broker in place of a NATS server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *rate, *outage, *kafka)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "away:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rate int, outage time.Duration, kafka bool) (err error) {
	dir, err := os.MkdirTemp("", "away")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	const mebi = 1 << 20
	r, err := away.Run(ctx, away.Options{Dir: dir, Kafka: kafka, Rate: rate, Before: 20 * rate, During: int(outage.Seconds()) * rate, After: 5 * rate})
	if err != nil {
		return err
	}
	server := map[bool]string{false: "NATS server", true: "Kafka broker"}[kafka]
	fmt.Printf("a %s away for %v at %d changes/s; %d changes in all, %d behind at its return\n\n", server, outage, rate, r.Fed, r.Backlog)
	fmt.Printf("memory, at most: before %d MiB, first third %d MiB, last third %d MiB   bar: the last two alike\n",
		r.Memory[0].InUse/mebi, r.Memory[1].InUse/mebi, r.Memory[2].InUse/mebi)
	fmt.Printf("other sink, latest change: before %v, since %v                bar: alike\n", r.Other[0].Round(time.Millisecond), r.Other[1].Round(time.Millisecond))
	fmt.Printf("first change after the return: %v                              bar: 2s\n", r.Recovery.Round(time.Millisecond))
	fmt.Printf("catching up: %.0f changes/s, %.1f times the live rate (%v)       bar: 10\n", r.Rate(), r.Rate()/float64(rate), r.CatchUp.Round(time.Millisecond))
	fmt.Printf("missing %d, duplicates %d, steps back %d                          bar: 0\n", r.Missing, r.Duplicates, r.StepsBack)
	return nil
}
