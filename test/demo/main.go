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
	"time"
)

const (
	exitOK     = 0 // also after Ctrl-C
	exitFailed = 1
	exitUsage  = 2
)

// readingPace is the pause between two steps. It is for the reader only; nothing is right or wrong because of it. It is
// more than a second, since Kubernetes records writers to the second: of two writes in one second, it is unknown which
// writer was the last.
const readingPace = 1100 * time.Millisecond

// options are the command line's.
type options struct {
	keep     bool          // go on after the script until the user stops it
	pace     time.Duration // between two steps
	exporter string        // program under demonstration; "" is bin/exporter of this checkout
}

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs the demo and returns its exit code.
func execute(args []string, stdout *os.File, stderr io.Writer) int {
	options, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return exitUsage
	}
	ctx, release := untilSignal()
	defer release()
	if err := run(ctx, options, newNarrator(stdout)); err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return exitFailed
	}
	return exitOK
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{pace: readingPace}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&o.keep, "keep", false, "leave everything running after the script, until Ctrl-C, and go on printing changes")
	fast := flags.Bool("fast", false, "no pauses between the steps")
	flags.StringVar(&o.exporter, "exporter", "", "exporter to run (default: bin/exporter of this checkout)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "demo takes no arguments, only flags; found %q\n", flags.Args())
		return o, errors.New("bad usage")
	}
	if *fast {
		o.pace = 0
	}
	return o, nil
}

// untilSignal returns a context that ends with the first signal. The second one ends the process at once; the kernel then
// ends its children, but the temporary directory stays.
//
// SIGPIPE is different, and there for "make demo | head": each unread line is one more of them, and none may end
// the process before it has cleaned up.
func untilSignal() (context.Context, func()) {
	unread, releaseUnread := signal.NotifyContext(context.Background(), syscall.SIGPIPE)
	ctx, release := signal.NotifyContext(unread, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, release)
	return ctx, func() {
		release()
		releaseUnread()
	}
}
