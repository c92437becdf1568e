package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	l := load{}
	bus := flag.String("bus", "", "kafka or nats; both where not given")
	flag.IntVar(&l.messages, "messages", 30_000, "messages in each round")
	flag.IntVar(&l.rounds, "rounds", 5, "rounds of each way")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *bus, l, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lanes:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bus string, l load, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "lanes")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	switch bus {
	case "kafka":
		return l.measureKafka(ctx, dir, out)
	case "nats":
		return l.measureNATS(ctx, dir, out)
	case "":
		return errors.Join(l.measureKafka(ctx, dir, out), l.measureNATS(ctx, dir, out))
	default:
		return fmt.Errorf("-bus %s: expected kafka or nats", bus)
	}
}
