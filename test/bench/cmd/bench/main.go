package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run starts what the first argument names.
func run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "replay":
			return runReplay(ctx, args[1:])
		case "broker":
			return runBroker(ctx, args[1:])
		case "read":
			return runRead(ctx, args[1:])
		case "floor":
			return runFloor(ctx, args[1:])
		case "baseline":
			return runBaseline(ctx, args[1:])
		}
	}
	return runComparison(ctx, args)
}
